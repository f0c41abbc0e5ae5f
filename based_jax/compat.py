"""Find out what JAX has no documented function for.

Each name of `UNDOCUMENTED` may be missing in another release: then one feature is off, as a warning says, and
everything else works.
"""

import functools
import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import core

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


def is_jax_used() -> bool:
    """Return whether JAX has read XLA_FLAGS; False if this jax cannot answer."""
    is_used = undocumented("jax._src.xla_bridge.backends_are_initialized")
    return is_used is not None and is_used()


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
