"""Implement and check the papers' theory: constructions that run, are counted, and compared with references.

`python -m based_jax.theory` prints the checks; docs/theory.md explains them, docs/errata.md lists the papers'
errors.
"""

from based_jax.theory.base_conv import Account, Layer, Stack, convolve
from based_jax.theory.check import Check

__all__ = ["Account", "Check", "Layer", "Stack", "convolve"]
