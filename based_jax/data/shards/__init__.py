"""Write and read token shards: a corpus tokenized to disk by ``based-jax train tokenize``."""
