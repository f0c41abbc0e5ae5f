"""Run tasks of lm-eval: ``based-jax eval lm-eval``."""
