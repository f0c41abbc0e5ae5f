"""The papers' theory as code: constructions that run, are counted, and are compared with what they compute.

`python -m based_jax.theory` prints what was checked; docs/theory.md walks through it, docs/errata.md lists
what the papers print otherwise.
"""

from based_jax.theory.base_conv import Account, Layer, Stack, convolve
from based_jax.theory.check import Check

__all__ = ["Account", "Check", "Layer", "Stack", "convolve"]
