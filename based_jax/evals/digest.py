"""The name of an evaluation run, by which kept answers are found again."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from based_jax.typing import Params

_PROBE = 64  # values of each parameter that distinguish models


def digest(settings: Mapping[str, Any], params: Params) -> str:
    """A short name for a run: equal settings and weights have the same one, on any machine."""
    parts = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for leaf in jax.tree.leaves(params):
        parts.update(np.asarray(leaf.reshape(-1)[:_PROBE]).tobytes())
    return parts.hexdigest()[:16]
