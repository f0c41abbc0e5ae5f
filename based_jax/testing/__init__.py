"""Tests for mixers of other packages: `check_mixer` raises where one breaks a law of the contract."""

from based_jax.testing.mixer import check_mixer

__all__ = ["check_mixer"]
