"""Continuous batching: an engine that answers many requests at once, and states of prefixes to begin with."""

from based_jax.generate.engine.engine import Engine

__all__ = ["Engine"]
