"""Evaluate SWDE, FDA and SQuAD-completion by the authors' protocol: ``python -m based_jax.evals.recall``."""
