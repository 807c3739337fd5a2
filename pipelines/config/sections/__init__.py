"""The models of the YAML's sections.

A section imports of this room its neighbours, and of the root `names`, `mistakes`, `paths` and `roles` alone.

    data        sources, attributes
    encoders    shorthands (``like``, ``defends``, ``halves``), queries
    attacks     attacks, attribute_inference, utility, validity; defenses, dp_audit, tuning
    limits      resources, budget, prices
    section     what sections have in common; parameters: settings of methods, by their dataclasses in `mi_core`
"""
