"""Measure distances between repeated bigrams: ``based-jax eval distances``."""
