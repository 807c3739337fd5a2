"""Ray and files: shards, pre-training, extraction, attacks and reports as resumable stages. No mathematics."""
