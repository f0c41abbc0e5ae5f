"""Launch kernels: by Pallas' Triton backend, or in its interpreter.

JAX 0.11 deprecates that backend, so it is imported at the first launch, and only launches for a GPU need it.
Kernel bodies use `jax.numpy`, refs and the masked `load` and `store` below, within the limits of the backend:
every array axis a power of two, no slices or concatenations of values (refs may be sliced), no batched dots.
Interpret mode accepts more, so the tests also lower each kernel for CUDA.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

BACKEND = "jax.experimental.pallas.triton"

_INTERPRET: ContextVar[bool] = ContextVar("interpret", default=False)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Run kernels traced inside in Pallas' interpreter, on any platform: slow, for tests.

    They count as available, so `implementation=None` picks them. Unwritten output elements are NaN. A
    function jitted inside stays interpreted; one jitted outside does not change.
    """
    token = _INTERPRET.set(True)
    try:
        yield
    finally:
        _INTERPRET.reset(token)


def is_interpreted() -> bool:
    """Return whether a kernel traced now would be interpreted."""
    return _INTERPRET.get()


def require() -> ModuleType:
    """Import Pallas' Triton backend.

    Raises:
        ImportError: this release of jax does not have it.
    """
    try:
        return importlib.import_module(BACKEND)
    except ImportError as error:
        raise ImportError(
            f"this jax {jax.__version__} has no Pallas Triton backend ({error}); expected an older release "
            "(0.12 has it), or 'triton', the same kernels by jax-triton (pip install 'based-jax[triton]')"
        ) from error


def launch(
    body: Callable[..., None],
    *operands: jax.Array,
    grid: Sequence[int],
    in_specs: Sequence[pl.BlockSpec],
    out_specs: Any,
    out_shape: Any,
    warps: int,
    stages: int = 1,
    aliases: Mapping[int, int] | None = None,
    name: str,
) -> Any:
    """Run `body` once per grid point.

    Args:
        body: takes one ref per operand and output.
        grid: up to three axes; programs that differ in the first only run next to each other.
        in_specs, out_specs, out_shape: as for `pallas_call`.
        warps: warps of 32 threads per program.
        stages: depth of the software pipeline of loads.
        aliases: operand number -> output number that may share its memory.
        name: shown by profilers.

    Raises:
        ImportError: this release of jax has no Triton backend, and the kernel is not interpreted.
    """
    # Always pass parameters: without them the default backend differs between releases of jax.
    params = None if is_interpreted() else require().CompilerParams(num_warps=warps, num_stages=stages)
    return pl.pallas_call(
        body,
        grid=tuple(grid),
        in_specs=list(in_specs),
        out_specs=out_specs,
        out_shape=out_shape,
        input_output_aliases=dict(aliases or {}),
        compiler_params=params,
        interpret=is_interpreted(),
        name=name,
    )(*operands)


def whole(array: Any) -> pl.BlockSpec:
    """Return a spec that gives every program the whole array."""
    return pl.BlockSpec(array.shape, lambda *_: (0,) * array.ndim)


def blocks(axes: str, sizes: Mapping[str, int], at: Callable[..., Mapping[str, Any]]) -> pl.BlockSpec:
    """Return a program's block of an array whose axes are letters.

    Args:
        sizes: elements along each axis of the block; refs drop the axes without a size, of one element.
        at: maps the program's indices in the grid to the index of its block along some axes; others have one.
    """

    def index(*program: Any) -> tuple[Any, ...]:
        found = at(*program)
        return tuple(found.get(axis, 0) for axis in axes)

    return pl.BlockSpec(tuple(map(sizes.get, axes)), index)


class Packing(NamedTuple):
    """Refs of one row: the number of real tokens, and the starts of their segments."""

    starts: Any
    """(N,) index of the first token of each token's segment; negative: before this call's first token"""
    count: Any
    """scalar: the tokens from here on are padding"""


def inside(rows: jax.Array | None, size: int, padded: int, tile: Any = None) -> jax.Array | None:
    """Return (rows, columns) mask of tile number `tile` of an array with `size` columns; None: all is inside.

    Args:
        rows: (rows,) mask; None for all.
        padded: columns of a tile.
    """
    rows = None if rows is None else rows[:, None]
    if size % padded == 0:
        return rows
    first = jnp.arange(padded) if tile is None else tile * padded + jnp.arange(padded)
    return both(rows, (first < size)[None, :])


def both(one: jax.Array | None, other: jax.Array | None) -> jax.Array | None:
    """Return the mask of what is in two masks that broadcast, where None is all."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def load(ref: Any, index: Any, valid: Any = None, other: float = 0) -> jax.Array:
    """Load ``ref[index]``, with `other` where `valid` (broadcast to the result's shape) is False.

    The GPU does not check blocks at the end of an array: accesses that may lie outside need `valid`.
    """
    if valid is None:
        return ref[index]
    if is_interpreted():
        return jnp.where(valid, ref[index], jnp.asarray(other, ref.dtype))
    view = ref.at[index]
    return require().load(view, mask=jnp.broadcast_to(valid, view.shape), other=other)


def store(ref: Any, index: Any, value: jax.Array, valid: Any = None) -> None:
    """Store ``ref[index] = value`` (cast to the ref's dtype) where `valid`."""
    value = value.astype(ref.dtype)
    if valid is None:
        ref[index] = value
    elif is_interpreted():
        ref[index] = jnp.where(valid, value, ref[index])
    else:
        require().store(ref.at[index], value, mask=jnp.broadcast_to(valid, value.shape))


def barrier() -> None:
    """Let the threads of a program see what the others have stored so far."""
    if not is_interpreted():
        require().debug_barrier()


def multiply_add(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """Return a b + c of float32 arrays that broadcast, in one instruction: XLA's Triton fuses no products."""
    return a * b + c if is_interpreted() else _instruction("fma.rn.f32", a, b, c)


def exp2(x: jax.Array) -> jax.Array:
    """Return 2**x of a float32 array in one instruction, 0 instead of numbers that are not normal."""
    return jnp.exp2(x) if is_interpreted() else _instruction("ex2.approx.ftz.f32", x)


def _instruction(name: str, *arrays: jax.Array) -> jax.Array:
    shape = jnp.broadcast_shapes(*(x.shape for x in arrays))
    result = jax.ShapeDtypeStruct(shape, jnp.float32)
    operands = ", ".join(f"${i}" for i in range(len(arrays) + 1))
    return require().elementwise_inline_asm(
        f"{name} {operands};",
        args=[jnp.broadcast_to(x, shape) for x in arrays],
        constraints=",".join(["=f", *"f" * len(arrays)]),
        pack=1,
        result_shape_dtypes=[result],
    )[0]


def dot(
    a: jax.Array, b: jax.Array, contract: tuple[int, int], into: Any = None, precision: str | None = None
) -> jax.Array:
    """Return a . b over one axis of each, accumulated in float32 (onto `into`).

    float32 operands are rounded to TF32, or with precision "highest" split into three products that keep
    float32's digits: tensor cores do not multiply float32.
    """
    algorithm: Any = None
    if precision == "highest" and a.dtype == jnp.float32:
        algorithm = lax.Precision.HIGHEST if is_interpreted() else lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    axes = (((contract[0],), (contract[1],)), ((), ()))
    product = lax.dot_general(a, b, axes, precision=algorithm, preferred_element_type=jnp.float32)
    return product if into is None else into + product


def quotient(x: Any, by: int) -> Any:
    """Return x // by of x >= 0, in the dtype of x: that of a Python number would depend on x64."""
    return lax.div(x, x.dtype.type(by))


def remainder(x: Any, by: int) -> Any:
    """Return x % by, as `quotient`."""
    return lax.rem(x, x.dtype.type(by))
