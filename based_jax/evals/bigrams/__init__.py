"""Count the bigrams of a training corpus: ``python -m based_jax.evals.bigrams``."""
