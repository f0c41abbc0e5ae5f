"""The papers' evaluations, each a command: ``python -m based_jax.evals.NAME``."""
