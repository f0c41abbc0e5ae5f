"""Describe the recall of any causal model on one page: ``python -m based_jax.evals.card``."""
