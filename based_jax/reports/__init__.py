"""The page of the published numbers with ours beside them: ``python -m based_jax.reports``."""
