"""Proof by lot: chance decides which images are published, before any encoder is trained on them.

Groups that somebody chose can never prove use (Zhang, Das, Kamath and Tramer, SaTML 2025). Groups that were drawn at
random can: whatever an encoder that never saw the draw answers, it cannot depend on it (Huang, Gong and Reiter, CCS
2024). So the only assumption of the test is the draw, and the draw can be checked.

    draw         the coins, as a function of a secret salt and a public number; those of all releases together
    merkle       a digest of many leaves of which single ones can be opened
    commitment   what binds images, salt and design before the draw; the chain of releases and questions
    designs      the test of each design: exact p-values, and e-values for any time of stopping
    verdict      what a claim says of an encoder, of its albums and of the share used; words: the same in plain words
"""
