"""Find out what JAX and Flax have no documented function for: the only private names of the library.

`pyproject.toml` admits only versions of jax and flax that have all of them.
"""

from typing import Any

import jax
from jax._src import core, xla_bridge
from jax._src.interpreters import ad, batching
from jax.extend.core import take_current_trace

_RUNNING = (batching.BatchTrace, ad.JVPTrace, ad.LinearizeTrace)
"""Traces of `vmap`, `jvp` and `grad`, whose operations run unless an outer trace records them."""


def is_jax_used() -> bool:
    """Return whether JAX has read XLA_FLAGS."""
    return xla_bridge.backends_are_initialized()


def is_recording() -> bool:
    """Return whether JAX records operations (`jit`, `scan`, `checkpoint`, `shard_map`) and does not run them.

    Under `grad`, `jvp` and `vmap` outside `jit` they run.
    """
    trace = current_trace()
    while isinstance(trace, _RUNNING):
        trace = trace.parent_trace
    return not isinstance(trace, core.EvalTrace)


def current_trace() -> Any:
    """Return the current trace; each program, and each part of one, has its own object."""
    with take_current_trace() as trace:
        return trace


def platform_of_mesh() -> str | None:
    """Return the platform of the devices of `jax.set_mesh` or `jax.shard_map`; None without a mesh."""
    device: Any = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    return None if device is None else device.platform


def is_intercepted() -> bool:
    """Return whether Flax's method calls are intercepted (`nn.intercept_methods`)."""
    from flax.linen import module  # here, since ops do without Flax

    return bool(module._global_interceptor_stack)
