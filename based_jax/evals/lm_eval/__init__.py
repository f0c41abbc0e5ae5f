"""Tasks of lm-eval on a model: ``python -m based_jax.evals.lm_eval``."""
