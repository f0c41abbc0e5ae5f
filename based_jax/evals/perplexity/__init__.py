"""Measure perplexity by slice, from one record per token: ``python -m based_jax.evals.perplexity``."""
