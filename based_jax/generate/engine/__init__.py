"""Continuous batching: an engine that answers many requests at once and reuses the states of prefixes."""

from based_jax.generate.engine.engine import Engine

__all__ = ["Engine"]
