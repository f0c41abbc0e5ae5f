"""Isolate an op or module from the caller's mesh and JAX settings."""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax

from based_jax.ops.core import explicit_mesh


@contextlib.contextmanager
def own_settings() -> Generator[None]:
    """Restore JAX's defaults for settings that raise.

    Arrays of different ranks broadcast regardless of `jax_numpy_rank_promotion`, and `jax.transfer_guard`
    allows the code's constants, which outside `jit` are transferred to the device one by one.
    """
    with jax.numpy_rank_promotion("allow"), jax.transfer_guard("allow"):
        yield


def run(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], like: Any = None
) -> Any:
    """Run a function by `explicit_mesh.run` with `own_settings`."""
    with own_settings():
        return explicit_mesh.run(function, args, kwargs, like)
