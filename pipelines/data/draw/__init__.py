"""Roles for scanned samples.

It imports of this room `read` and `scan`, and of the root `columns`, `database` and `tasks`.

    draw        the roles of a seed; listed: those with lists of keys; duplicates: copies that are dropped
    rules       the role of a sample by its hash; ranks, thresholds: where the ranges of hashes end
    splits      the roles as others read them; sums, recount: counts; first, halves, overlap: parts of roles
    images      the images of roles; blended: those of canaries that are mixed with noise
"""
