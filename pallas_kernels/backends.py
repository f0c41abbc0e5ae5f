"""`python -m pallas_kernels.backends`: measure the forward pass by backend on this GPU, keep which is faster.

At each size the portable kernels and those for Hopper take turns. With --write the sizes at which the
portable ones lose become rows for this kind of device in the `backends.json` of the op, which
``implementation=None`` follows. A measured size speaks for all up to the next larger one; sizes below the
smallest stay with the portable kernels.
"""

import functools
import itertools
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import tyro
from rich.console import Console
from rich.progress import track

from pallas_kernels import tuning
from pallas_kernels.contest import contest
from pallas_kernels.flags import parse, run
from pallas_kernels.taylor_attention import mosaic_support, taylor_attention

PROGRAM = "python -m pallas_kernels.backends"

OP, PORTABLE, HOPPER = "taylor_attention", "pallas", "mosaic"

ROWS_AND_HEADS = (16, 64, 256, 1024)
LENGTHS = (1024, 4096, 16384)
HEADS = 16

GAIN = 1.03
"""So many times as fast as the portable kernels it must be: less may be noise, and they run on more GPUs."""

LAST = 10**9
"""The upper end of the last interval."""


class Size(NamedTuple):
    """What decides."""

    rows_and_heads: int
    length: int
    value_size: int


@dataclass(frozen=True)
class Backends:
    """Measure the forward pass of Taylor attention by backend on this GPU."""

    value_sizes: tuple[int, ...] = (64, 112, 128)
    """Channels of the values."""
    seconds: float = 1.0
    """Time for each backend at each size, besides compiling."""
    write: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace this device's rows in the table of this checkout; those for other value sizes stay."""


@dataclass(frozen=True)
class Result:
    """Seconds per call of each backend at one size, or why it was left out."""

    size: Size
    seconds: Mapping[Hashable, float]
    refused: Mapping[Hashable, str]

    @property
    def gain(self) -> float:
        """How many times as fast as the portable kernels the others are; 0 if they do not run."""
        return self.seconds[PORTABLE] / self.seconds[HOPPER] if HOPPER in self.seconds else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Raises:
        SystemExit: status 2 for flags that do not parse, 0 after `--help`.
        ValueError: this is no Hopper GPU, or jax is too old; a flag that makes no sense.
        OSError: `--write`, and the table cannot be written.
    """
    options = parse(Backends, argv, PROGRAM)
    if not options.seconds > 0:
        raise ValueError(f"--seconds {options.seconds}: expected a positive number")
    if not options.value_sizes or min(options.value_sizes) < 1:
        raise ValueError(f"--value-sizes {options.value_sizes}: expected positive numbers")
    if reason := mosaic_support.cannot_run():
        raise ValueError(reason)
    path = tuning.path(OP, "backends.json")
    if options.write:
        tuning.expect_writable(path)
    console, results = Console(), []
    sizes = [
        Size(count, length, value_size)
        for value_size, count, length in itertools.product(options.value_sizes, ROWS_AND_HEADS, LENGTHS)
    ]
    for size in track(sizes, "measuring", console=Console(stderr=True), transient=True):
        results.append(Result(size, *contest(functions(), arguments(size), options.seconds)))
        console.print(describe(results[-1]), highlight=False, markup=False, soft_wrap=True)
        if options.write:  # each time: a kernel that has never met a GPU may end the process
            old = json.loads(path.read_text())
            path.write_text(tuning.as_json(replaced(old, results, tuning.device_kind())))
    tuning.backends.cache_clear()
    if options.write:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    return 0


def functions() -> dict[Hashable, Any]:
    """The contestants, the one whose results count first."""
    return {backend: functools.partial(taylor_attention, backend=backend) for backend in (PORTABLE, HOPPER)}


def arguments(size: Size) -> list[jax.ShapeDtypeStruct]:
    """Queries, keys and values."""
    heads = min(HEADS, size.rows_and_heads)
    return [
        jax.ShapeDtypeStruct((size.rows_and_heads // heads, size.length, heads, channels), "bfloat16")
        for channels in (mosaic_support.KEY_SIZE, mosaic_support.KEY_SIZE, size.value_size)
    ]


def describe(result: Result) -> str:
    """A line for the terminal."""
    size = result.size
    parts = [f"{backend} {seconds * 1e6:.1f} us" for backend, seconds in result.seconds.items()]
    parts += [f"{backend}: {reason}" for backend, reason in result.refused.items()]
    gain = f", {result.gain:.2f}x" if result.gain else ""
    return f"{OP} R{size.rows_and_heads} N{size.length} V{size.value_size}: {', '.join(parts)}{gain}"


def rows(results: Sequence[Result], device: str) -> list[dict[str, Any]]:
    """The rows of a table after these results."""
    return [
        {
            "device": device,
            "when": {
                "rows_and_heads": _from(ROWS_AND_HEADS, result.size.rows_and_heads),
                "length": _from(LENGTHS, result.size.length),
                "value_size": result.size.value_size,
            },
            "backend": HOPPER,
        }
        for result in results
        if result.gain >= GAIN
    ]


def replaced(
    old: Sequence[Mapping[str, Any]], results: Sequence[Result], device: str
) -> list[Mapping[str, Any]]:
    """A table with these results in the place of the device's rows; those for other value sizes stay."""
    measured = {None, *(result.size.value_size for result in results)}
    kept = [row for row in old if row["device"] != device or row["when"].get("value_size") not in measured]
    return [*kept, *rows(results, device)]


def _from(measured: Sequence[int], size: int) -> list[int]:
    """From a measured number up to, not including, the next one."""
    return [size, next((other - 1 for other in measured if other > size), LAST)]


if __name__ == "__main__":
    run(PROGRAM, main)
