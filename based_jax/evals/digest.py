"""Name an evaluation run by a digest, under which its saved answers are found again."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from based_jax.typing import Params

_PROBE = 64  # values of each parameter in the digest


def digest(settings: Mapping[str, Any], params: Params) -> str:
    """Return a short name of a run, the same for equal settings and weights on any machine."""
    parts = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for leaf in jax.tree.leaves(params):
        parts.update(np.asarray(leaf.reshape(-1)[:_PROBE]).tobytes())
    return parts.hexdigest()[:16]
