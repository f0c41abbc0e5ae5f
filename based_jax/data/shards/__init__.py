"""Token shards: a tokenized corpus on disk, written once by ``python -m train.tokenize`` and read in place."""
