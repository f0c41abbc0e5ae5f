"""Measure distances between repeated bigrams: ``python -m based_jax.evals.distances``."""
