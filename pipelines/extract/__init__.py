"""Query encoders for membership features, shard by shard."""
