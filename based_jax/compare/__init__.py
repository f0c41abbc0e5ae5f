"""Compare any mixers by what they recall with states of what size: ``based-jax compare``."""
