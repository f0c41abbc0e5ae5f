"""The border of an op or a module: what a caller's mesh and settings of JAX would change inside is undone."""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax

from based_jax.ops.core import explicit_mesh


@contextlib.contextmanager
def own_settings() -> Generator[None]:
    """JAX's defaults for what a caller may have made an error.

    Arrays of different ranks broadcast whatever `jax_numpy_rank_promotion` says, and `jax.transfer_guard`
    lets the numbers of the code pass, which outside `jit` reach the device one by one.
    """
    with jax.numpy_rank_promotion("allow"), jax.transfer_guard("allow"):
        yield


def run(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], like: Any = None
) -> Any:
    """`explicit_mesh.run` with `own_settings`."""
    with own_settings():
        return explicit_mesh.run(function, args, kwargs, like)
