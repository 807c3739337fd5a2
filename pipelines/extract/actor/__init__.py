"""The work of an encoder actor on a chunk; without a cluster this process does it.

It imports of this room `division`, and of the root `bank`.

    worker      a chunk from its images to its committed features
    asking      encoders, kept between chunks, asked for the features of a chunk; the feature file
    attempts    markers of what was tried, and the sample that kills a worker
"""
