"""From sources to samples with roles.

The root and three drawers, which import one way:

    run            the stage; look: the same for a few shards
    columns        columns of samples; database: what scanning and drawing need
    read           items of sources, and the samples in them
    scan           every sample read once; it imports `read`
    draw           the roles of samples; it imports `read` and `scan`
"""
