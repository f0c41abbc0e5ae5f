"""Evaluate SWDE, FDA and SQuAD-completion by the authors' protocol: ``based-jax eval recall``."""
