"""Scores to numbers, each with its 95 % interval.

``intervals`` (rates), ``delong`` (AUC and paired differences of AUCs), ``membership`` (one run of an attack),
``pooled`` (several runs), ``utility`` (what the encoder is still good for).
"""
