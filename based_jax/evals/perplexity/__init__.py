"""Measure perplexity by slice, from one record per token: ``based-jax eval perplexity``."""
