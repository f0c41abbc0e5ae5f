"""Arrays on the device without a program of their own."""

from typing import Any

import numpy as np

from based_jax import ops
from based_jax.testing.arrays import array, normals

__all__ = ["array", "normals", "stream_at"]


def stream_at(length: Any, start: Any, segment: Any) -> ops.Stream:
    """Rows that have come so far, and met numbers only."""
    return ops.Stream(length, start, segment, np.zeros(np.shape(length), bool))
