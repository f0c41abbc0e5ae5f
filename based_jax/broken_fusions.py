"""Disable fusions of XLA that compute wrong numbers on a CPU, before JAX is used."""

import importlib
import os
import re
import sys
import warnings
from importlib import metadata

# Versions of jaxlib, from the first to before the second; in November 2026 there were no later ones to try.
_MISCOMPILING = ((0, 10, 2), (0, 13))
_FLAG = "--xla_cpu_experimental_ynn_fusion_type"


def avoid_broken_fusions() -> None:
    """Disable XLA's fusions of matrix products on a CPU, whose programs can be wrong or crash.

    Seen with jaxlib 0.10.2: `linear_attention` on 32 rows of 32 tokens and 4 heads returns 1e33 (0.12.0 too),
    `gla` and `rwkv7` at that size end the process (related: https://github.com/jax-ml/jax/issues/39257).
    This sets XLA_FLAGS, which JAX reads once, at its first use; if JAX was already used, a warning is issued.
    A user's own value of the flag is kept. JAX is not imported for this.
    """
    low, high = _MISCOMPILING
    try:
        version = tuple(int(part) for part in re.findall(r"\d+", metadata.version("jaxlib"))[:3])
    except metadata.PackageNotFoundError:  # based_jax.testing.layers works without JAX
        return
    if not low <= version < high or _FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    is_imported = "jax" in sys.modules
    if not (is_imported and importlib.import_module("based_jax.compat").is_jax_used()):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=".strip()
    elif sys.modules["jax"].default_backend() == "cpu":
        warnings.warn(
            f"JAX was used before based_jax was imported: import it first or set XLA_FLAGS={_FLAG}= "
            "because this jaxlib's fusions of matrix products can be wrong on a CPU",
            stacklevel=3,
        )
