"""Run tasks of lm-eval: ``python -m based_jax.evals.lm_eval``."""
