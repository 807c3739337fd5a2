"""Fit attacks on their reference, score the audited samples, and run the controls.

run            the stage; results: where the result of an attack is
fit            from columns to a fitted attack; score: every sample scored by it; scores: read back
judge          what scores say of an attack; candidates: of each candidate; canaries: of the coins of a promise
blind          scores without the audited encoder
inference      attributes inferred from embeddings; utility: what encoders are good for
"""
