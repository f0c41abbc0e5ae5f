"""What is broken in some versions of JAX and Flax, and how it is kept from users."""

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

# jaxlib from the first to before the second; later ones were not there to be tried in November 2026.
_MISCOMPILING = ((0, 10, 2), (0, 13))
_FLAG = "--xla_cpu_experimental_ynn_fusion_type"


def avoid_broken_fusions() -> None:
    """Keep XLA from fusing around matrix products on a CPU, where the programs can be wrong or crash.

    Seen with jaxlib 0.10.2: `linear_attention` on 32 rows of 32 tokens and 4 heads returns 1e33 (0.12.0 too),
    `gla` and `rwkv7` at that size end the process (a relative: https://github.com/jax-ml/jax/issues/39257).
    XLA_FLAGS names no such fusions then. JAX reads it once, at its first use; where that is over, a warning
    says so. A user's own value of the flag stays.
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
    """Import Flax on a machine that lacks rich, which Flax needs for `tabulate` only but imports at once."""
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
    """Whether JAX writes operations down (`jit`, `scan`, `checkpoint`, `shard_map`) instead of running them.

    Under `grad`, `jvp` and `vmap` outside `jit` they run. JAX has no public name for this.
    """
    trace = current_trace()
    while isinstance(trace, ad.JVPTrace | ad.LinearizeTrace | batching.BatchTrace):
        trace = trace.parent_trace
    return not isinstance(trace, core.EvalTrace)


def is_recorded_as_is() -> bool:
    """Return whether operations are written down, under `vmap` at most: derivatives, if any, come later."""
    trace = current_trace()
    while isinstance(trace, batching.BatchTrace):
        trace = trace.parent_trace
    return isinstance(trace, partial_eval.DynamicJaxprTrace)


def current_trace() -> Any:
    """What is done with operations now; another object in each program and each part of one."""
    return core.trace_ctx.trace


def platform_of_mesh() -> str | None:
    """Return the platform of the devices of `jax.set_mesh`, None without."""
    found = mesh.get_concrete_mesh()
    return None if found.empty else found.devices.flat[0].platform


def numeric_settings() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return what sets the current number of bits and precision of products again, in a later trace."""
    config: Any = jax.config
    wide, precision = config.jax_enable_x64, config.jax_default_matmul_precision

    @contextlib.contextmanager
    def again() -> Generator[None]:
        with jax.enable_x64(wide), jax.default_matmul_precision(precision):
            yield

    return again


def is_intercepted() -> bool:
    """Return whether somebody watches Flax's calls of methods (`nn.intercept_methods`) and must see each."""
    return bool(getattr(sys.modules.get("flax.linen.module"), "_global_interceptor_stack", ()))
