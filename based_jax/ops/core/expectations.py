"""Checks that several ops share; each error names the argument, its value and what was expected."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from based_jax.typing import Array
from based_jax.validate import expect, expect_array


class Sizes(NamedTuple):
    """Sizes of the axes of queries, keys and values."""

    batch: int
    length: int
    heads: int
    width: int
    value_size: int


def expect_qkv(q: Array, k: Array, v: Array, names: Sequence[str] = "qkv", width: str = "K") -> Sizes:
    """Check q and k, (B, N, H, K), and v, (B, N, H, V); return their sizes."""
    expect_array(names[0], q, ("B", "N", "H", width), "floating")
    expect_array(names[1], k, q.shape, "floating")
    expect_array(names[2], v, (*q.shape[:3], "V"), "floating")
    batch, length, heads, size = q.shape
    return Sizes(batch, length, heads, size, v.shape[-1])


def expect_chunk_size(chunk_size: int | None, default: int) -> int:
    """Check an argument `chunk_size`; return it, or the default if None."""
    expect(chunk_size is None or chunk_size >= 1, "chunk_size", chunk_size, "at least 1")
    return chunk_size or default


def expect_state(state: Any, **shapes: tuple[int | str, ...]) -> None:
    """Check the arrays of an `initial_state`, if there is one, by their names."""
    for name, shape in shapes.items() if state is not None else ():
        expect_array(f"initial_state.{name}", getattr(state, name), shape, "floating")


def expect_state_to_return(state: Any, return_state: bool) -> None:
    """Check that an op whose state has a fixed capacity got a state if it is to return one."""
    expect(state is not None or not return_state, "return_state", return_state, "False without a state")
