"""Count the bigrams of a training corpus: ``based-jax eval bigrams``."""
