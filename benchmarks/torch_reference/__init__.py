"""Implement Based and Transformer++ again in torch, for side-by-side timings. Needs torch, on a CPU.

It implements the equations in the docstrings of `based_jax.mixers`, with the parameter names of the authors'
code, so that `based_jax.convert` can transfer weights.
"""
