"""Write and read token shards: a corpus tokenized to disk by ``python -m train.tokenize``."""
