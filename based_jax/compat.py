"""Workarounds for defects of some versions of JAX and Flax, and what JAX has no documented function for.

Each name of `UNDOCUMENTED` may be missing in another release: then one feature is off, as a warning says, and
everything else works.
"""

import functools
import importlib
import importlib.util
import os
import re
import sys
import types
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax import core

# Versions of jaxlib, from the first to before the second; in November 2026 there were no later ones to try.
_MISCOMPILING = ((0, 10, 2), (0, 13))
_FLAG = "--xla_cpu_experimental_ynn_fusion_type"

UNDOCUMENTED = {
    "jax._src.xla_bridge.backends_are_initialized": "XLA_FLAGS may be set too late to avoid broken fusions",
    "jax.extend.core.take_current_trace": "ops outside jit are not compiled and do not check arrays' values",
}
"""Names of JAX, and what follows where one is missing."""


@functools.cache
def undocumented(name: str) -> Any:
    """Return an object of `UNDOCUMENTED`; None, and a warning at the first time, if this jax lacks it."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        warnings.warn(f"jax {jax.__version__} has no {name}: {UNDOCUMENTED[name]}", stacklevel=3)
        return None


def avoid_broken_fusions() -> None:
    """Disable XLA's fusions of matrix products on a CPU, whose programs can be wrong or crash.

    Seen with jaxlib 0.10.2: `linear_attention` on 32 rows of 32 tokens and 4 heads returns 1e33 (0.12.0 too),
    `gla` and `rwkv7` at that size end the process (related: https://github.com/jax-ml/jax/issues/39257).
    This sets XLA_FLAGS, which JAX reads once, at its first use; if JAX was already used, a warning is issued.
    A user's own value of the flag is kept.
    """
    low, high = _MISCOMPILING
    version = tuple(int(part) for part in re.findall(r"\d+", metadata.version("jaxlib"))[:3])
    if not low <= version < high or _FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    is_used = undocumented("jax._src.xla_bridge.backends_are_initialized")
    if is_used is None or not is_used():
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=".strip()
    elif jax.default_backend() == "cpu":
        warnings.warn(
            f"JAX was used before based_jax was imported: import it first or set XLA_FLAGS={_FLAG}= "
            "because this jaxlib's fusions of matrix products can be wrong on a CPU",
            stacklevel=3,
        )


def import_flax_without_rich() -> None:
    """Import Flax on a machine without rich, which Flax always imports but needs only for `tabulate`."""
    if importlib.util.find_spec("rich") is not None:
        return
    names = ("rich", "rich.console", "rich.table", "rich.text")
    before: dict[str, Any] = {name: sys.modules[name] for name in names if name in sys.modules}
    placeholders = {name: types.ModuleType(name) for name in names}
    sys.modules.update(placeholders)
    try:
        import flax.linen  # noqa: F401
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


def is_recording() -> bool:
    """Return whether JAX records operations (`jit`, `scan`, `checkpoint`, `shard_map`) and does not run them.

    Under `grad`, `jvp` and `vmap` outside `jit` they run. JAX has no documented function for this.
    """
    trace, known = current_trace(), _classes()
    while type(trace) in (known["vmap"], known["jvp"], known["grad"]):
        trace = getattr(trace, "parent_trace", None)
    return type(trace) is not known["none"]


def current_trace() -> Any:
    """Return the current trace; each program, and each part of one, has its own object."""
    take = undocumented("jax.extend.core.take_current_trace")
    if take is None:
        return object()
    with take() as trace:
        return trace


_TRANSFORMATIONS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "none": lambda function: function(0.0),
    "vmap": lambda function: jax.vmap(function)(np.zeros(1)),
    "jvp": lambda function: jax.jvp(function, (0.0,), (0.0,)),
    "grad": lambda function: jax.vjp(function, 0.0),
}


@functools.cache
def _classes() -> dict[str, type]:
    """Return the class of the trace within each transformation."""
    found: list[type] = []

    def function(x: Any) -> Any:
        found.append(type(current_trace()))
        return x

    with core.eval_context():
        for transformation in _TRANSFORMATIONS.values():
            transformation(function)
    return dict(zip(_TRANSFORMATIONS, found, strict=True))


def platform_of_mesh() -> str | None:
    """Return the platform of the devices of `jax.set_mesh` or `jax.shard_map`; None without a mesh."""
    device: Any = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    return None if device is None else device.platform


def is_intercepted() -> bool:
    """Return whether Flax's method calls are intercepted (`nn.intercept_methods`)."""
    return bool(getattr(sys.modules.get("flax.linen.module"), "_global_interceptor_stack", ()))
