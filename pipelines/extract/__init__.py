"""Query encoders for membership features, shard by shard.

The root and two drawers, which import one way:

    run            the stage; stream: where and how fast queries are answered
    division       what is asked of which images: passes, jobs, chunks
    actor          what an encoder actor does with a chunk; of the root it imports `bank`
    preflight      every node and target tried before the first query; chunk_size: images in a chunk
    bank           images that every sample is compared with
    ledger         queries counted, and held to the budget
    features       what was committed, read back
"""
