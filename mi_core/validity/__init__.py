"""Checks that a result means what it seems to: controls that need no encoder or another one, and the verdict.

The root and a drawer that imports nothing of it:

    verdict            the verdict on an attack; power: what a verdict of so many images can find
    bound              an upper limit of what attacks reach
    blind              a classifier that queries no encoder; file_features: what it sees of a file
    unseen             a score without what reference encoders explain of it
    near_duplicates    near-copies; hash_tables: pairs of close hashes; bursts: photographs of one scene
    candidates         each candidate by itself; conformal: p-values and flags; posterior: probabilities
    sets               many images together: used, in what share, forgotten
    one_run            privacy from guessed canaries; multiple_testing: several p-values at once
"""
