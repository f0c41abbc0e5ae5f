"""The one table of tolerances. They may only tighten.

A tolerance bounds the largest error of an array relative to its largest magnitude (the max norm), so that
elements near zero, which are sums of larger terms that cancel, are not asked for digits that nothing has.
"""

from based_jax.testing.arrays import assert_close

__all__ = ["assert_close"]

FLOAT64 = 1e-11
"""Two orders of the same float64 sum: some 1e-16 per term, times thousands of terms, times the condition of a
normaliser. Also states and gradients: they are sums of the same kind."""

FINITE_DIFFERENCE = 1e-6
"""A float64 gradient against central differences with step 1e-5: a truncation error of step^2 times the third
derivative, and rounding of 1e-16 / step."""

FLOAT32 = 1e-5
"""float32 values against float64: 6e-8 per rounding, tens of terms, and a quotient."""

FLOAT32_STATE = 1e-5
"""float32 sums of features: no quotient, but more terms than an output sees."""

FLOAT32_GRADIENT = 5e-5
"""float32 gradients against float64: the forward error once more, and a quotient's derivative squares its
normaliser."""

FLOAT32_ANGLE = 1e-7
"""Rotary embedding per position: the angle is a float32 product, so its error grows with the position."""

BFLOAT16 = 1e-2
"""bfloat16 inputs and outputs, float32 inside: the output is rounded to 8 bits (4e-3), and so are the weights
of a softmax or the taps of a convolution."""

FLOAT16 = 2e-3
"""As BFLOAT16 with 11 bits (5e-4)."""
