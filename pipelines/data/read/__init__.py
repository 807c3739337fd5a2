"""Items of sources, and the samples in them.

It imports nothing else of this room.

    sources     kinds of sources; folders, tars and tar_shards, parquet_columns and parquet_shards: each kind
    shard_paths patterns to paths; shard_sample: some shards in place of all
    samples     the records that reading yields; attributes, captions: what is read beside an image
    key_lists   lists of keys that roles hold
"""
