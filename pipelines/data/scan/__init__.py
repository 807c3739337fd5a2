"""Every sample read once, and what is kept of it.

It imports of this room `read`, and of the root `columns`, `database` and `tasks`.

    scan        decodes and hashes; repeated: keys that stand twice; losses: what could not be used
    glimpses    some samples kept for later looks; near_pairs: pairs of samples with close hashes
    shards      imports a source into WebDataset shards, and inspects one
"""
