"""Token shards: a tokenized corpus on disk, which ``python -m train.tokenize`` writes."""
