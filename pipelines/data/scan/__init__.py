"""Every sample read once, and what is kept of it.

scan        decodes and hashes; losses: what could not be used, and keys that stand twice
glimpses    some samples kept for later looks; near_pairs: pairs of samples with close hashes
shards      imports a source into WebDataset shards, and inspects one
"""
