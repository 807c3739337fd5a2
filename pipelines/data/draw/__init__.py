"""Roles for scanned samples.

It imports of this room `read` and `scan`, and of the root `columns` and `database`.

    draw        the roles of a seed; duplicates: copies that are dropped, and lists of keys
    rules       the role of a sample by its hash; thresholds: where the ranges of hashes end
    splits      the roles as others read them; sums: counts; parts: the first, halves, what recurs
    images      the images of roles; those of canaries that are mixed with noise
"""
