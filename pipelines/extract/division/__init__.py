"""Queries and the images that they ask about, divided into passes, jobs and chunks.

It imports nothing else of this room.

    passes      queries that ask for the same images, grouped; what was recorded of earlier ones
    jobs        a pass cut into jobs, one per shard, and which of them remain
    readers     the samples of one shard that a pass asks for, as a stream of chunks
"""
