"""Evaluations of the papers, each a command: ``python -m based_jax.evals.NAME``."""
