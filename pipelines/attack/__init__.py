"""Fit attacks on their reference, score the audited samples, and run the controls.

The root and a drawer, `answers`, which imports of the root what makes and reads scores:

    run            the stage
    results        where the result of an attack is; reference: the samples that it is fitted on
    fit            from columns to a fitted attack; score: every sample scored by it; scores: read back
    answers        what scores answer: of the candidates together, of each, of canaries
    blind          a score without any encoder; semantic: one by reference encoders
    inference      attributes inferred from embeddings; utility: what encoders are good for
"""
