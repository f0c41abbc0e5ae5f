"""Describe the recall of any causal model on one page: ``based-jax eval card``."""
