"""Tests of many images together.

It imports nothing else of this folder.

    dataset     whether candidates were used, as a whole
    share       the share of them that was used
    forgetting  whether an encoder forgot images; kept: whether it still knows a few of them in full
"""
