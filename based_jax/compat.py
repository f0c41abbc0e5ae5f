"""Workarounds for defects of some versions of JAX and Flax."""

import contextlib
import importlib.util
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Generator
from importlib import metadata
from typing import Any

import jax
from jax._src import core, mesh, xla_bridge
from jax._src.interpreters import ad, batching, partial_eval

# Versions of jaxlib, from the first to before the second; in November 2026 there were no later ones to try.
_MISCOMPILING = ((0, 10, 2), (0, 13))
_FLAG = "--xla_cpu_experimental_ynn_fusion_type"


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
    if not xla_bridge.backends_are_initialized():
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

    Under `grad`, `jvp` and `vmap` outside `jit` they run. JAX has no public function for this.
    """
    trace = current_trace()
    while isinstance(trace, ad.JVPTrace | ad.LinearizeTrace | batching.BatchTrace):
        trace = trace.parent_trace
    return not isinstance(trace, core.EvalTrace)


def is_recorded_as_is() -> bool:
    """Return whether operations are recorded, under `vmap` at most: derivatives, if any, come later."""
    trace = current_trace()
    while isinstance(trace, batching.BatchTrace):
        trace = trace.parent_trace
    return isinstance(trace, partial_eval.DynamicJaxprTrace)


def current_trace() -> Any:
    """Return the current trace; each program, and each part of one, has its own object."""
    return core.trace_ctx.trace


def platform_of_mesh() -> str | None:
    """Return the platform of the devices of `jax.set_mesh`; None without a mesh."""
    found = mesh.get_concrete_mesh()
    return None if found.empty else found.devices.flat[0].platform


def numeric_settings() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a function whose context restores the current x64 and matmul precision in a later trace."""
    config: Any = jax.config
    wide, precision = config.jax_enable_x64, config.jax_default_matmul_precision

    @contextlib.contextmanager
    def again() -> Generator[None]:
        with jax.enable_x64(wide), jax.default_matmul_precision(precision):
            yield

    return again


def is_intercepted() -> bool:
    """Return whether Flax's method calls are intercepted (`nn.intercept_methods`)."""
    return bool(getattr(sys.modules.get("flax.linen.module"), "_global_interceptor_stack", ()))
