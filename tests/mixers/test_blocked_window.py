"""Attention in blocks: each one alone, the first beginning with its document; the size of the state."""

import jax
import numpy as np

from based_jax import mixers
from based_jax.testing import laws
from tests.tolerances import FLOAT32, assert_close

WIDTH = 5


def test_blocks_are_alone_and_begin_with_each_document():
    """Two documents of 7 tokens: blocks of 5 and 2, each as full attention over itself."""
    blocked = laws.Runner(mixers.make("blocked_window", d_model=6, num_heads=2, width=WIDTH))
    full = jax.jit(mixers.make("attention", d_model=6, num_heads=2).apply)
    x = laws.inputs(2, 14, 6, 0)
    y, _ = blocked(x, segment_ids=np.repeat([[0, 1]], 7, axis=1).repeat(2, axis=0))
    for begin, end in ((0, 5), (5, 7), (7, 12), (12, 14)):
        assert_close(y[:, begin:end], full(blocked.variables, x[:, begin:end])[0], FLOAT32)
