"""`python -m pallas_kernels.backends --out DIR`: measure the forward pass by backend on this GPU.

At each size the portable kernels and those for Hopper take turns. `python -m pallas_kernels.adopt DIR` writes
the sizes at which the portable ones are slower to the op's `backends.json`, which ``implementation=None``
uses.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from pallas_kernels import measuring
from pallas_kernels.checks import expect
from pallas_kernels.choices import LAST
from pallas_kernels.flags import parse, run
from pallas_kernels.launch import is_interpreted
from pallas_kernels.measuring import MeasuringFlags
from pallas_kernels.taylor_attention import mosaic_support, taylor_attention
from pallas_kernels.trials import Trial

PROGRAM = "python -m pallas_kernels.backends"

OP, PORTABLE, HOPPER = "taylor_attention", "pallas", "mosaic"

ROWS_AND_HEADS = (16, 64, 256, 1024)
LENGTHS = (1024, 4096, 16384)
HEADS = 16


class Size(NamedTuple):
    """Sizes on which the choice of a backend depends."""

    rows_and_heads: int
    length: int
    value_size: int


HEADLINE = Size(256, 16384, 64)
"""Measured first; the others follow by their distance from it."""


@dataclass(frozen=True, kw_only=True)
class Backends(MeasuringFlags):
    """Measure the forward pass of Taylor attention by backend on this GPU; results are in DIR/backends.json.

    There are 36 sizes of an estimated few seconds each, mostly for compiling.
    """

    value_sizes: tuple[int, ...] = (64, 112, 128)
    """Channels of the values."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `measuring.run` for the exit status and errors."""
    flags = parse(Backends, argv, PROGRAM)
    flags.check()
    sensible = len(flags.value_sizes) > 0 and min(flags.value_sizes) >= 1
    expect(sensible, "--value-sizes", flags.value_sizes, "positive numbers")
    return measuring.run("backends", flags, argv, lambda: trials(flags), cannot_run)


def cannot_run() -> str | None:
    """Return why the backends cannot be compared here, or None; the interpreter uses a substitute."""
    return None if is_interpreted() else mosaic_support.cannot_run()


def trials(flags: Backends) -> list[list[Trial]]:
    """Return both backends at each size, those near the headline first."""
    sizes = [Size(*size) for size in itertools.product(ROWS_AND_HEADS, LENGTHS, flags.value_sizes)]
    if flags.quick:
        sizes = [Size(1, 130, 64)]
    return [[trial(size, backend) for backend in (PORTABLE, HOPPER)] for size in sorted(sizes, key=distance)]


def distance(size: Size) -> tuple[bool, float]:
    """Return the distance from the headline size; other value sizes are furthest."""
    steps = (math.log2(a / b) for a, b in zip(size[:2], HEADLINE[:2], strict=True))
    return size.value_size != HEADLINE.value_size, sum(map(abs, steps))


def trial(size: Size, backend: str) -> Trial:
    """Return the forward pass of one backend at one size."""
    heads = min(HEADS, size.rows_and_heads)
    arguments = tuple(
        jax.ShapeDtypeStruct((size.rows_and_heads // heads, size.length, heads, channels), "bfloat16")
        for channels in (mosaic_support.KEY_SIZE, mosaic_support.KEY_SIZE, size.value_size)
    )
    rows = _from(ROWS_AND_HEADS, size.rows_and_heads)
    when = size._asdict() | {"rows_and_heads": rows, "length": _from(LENGTHS, size.length)}
    name = f"{OP} R{size.rows_and_heads} N{size.length} V{size.value_size}"
    return Trial(name, backend, function(backend), arguments, {"backend": backend}, {"when": when})


def _from(measured: Sequence[int], size: int) -> list[int]:
    """Return the interval that a measured size represents: up to, not including, the next measured one."""
    return [size, next((other - 1 for other in measured if other > size), LAST)]


def function(backend: str) -> Any:
    """Return the call; interpreted, portable kernels replace Mosaic's, whose interpreter takes minutes."""
    if backend == HOPPER and is_interpreted():
        return functools.partial(taylor_attention, block=128)
    return functools.partial(taylor_attention, backend=backend)


if __name__ == "__main__":
    run(PROGRAM, main)
