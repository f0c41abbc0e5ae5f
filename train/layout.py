"""Where parameters and optimizer state live: a table of what each device holds."""

import math
import re
from collections.abc import Iterator
from typing import Any

import jax
from rich.table import Table

from train.step import TrainState


def shard_bytes(leaf: Any) -> int:
    """Bytes of one device's share of an abstract array with a sharding."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def layout_table(state: TrainState) -> Table:
    """Each kind of parameter, how its axes are cut, and a device's bytes; below it the totals.

    Args:
        state: shapes, dtypes and shardings, such as `Programs.abstract_state`.
    """
    table = Table(title="Layout on one device", title_justify="left")
    for column in ("parameter", "shape", "cut over"):
        table.add_column(column)
    for column in ("copies", "MiB each"):
        table.add_column(column, justify="right")
    for (name, shape, cut), leaves in _kinds(state.params):
        size = _mib(shard_bytes(leaves[0]))
        table.add_row(name, " x ".join(map(str, shape)), cut, str(len(leaves)), size)
    table.add_section()
    for name, tree in (("all parameters", state.params), ("optimizer state", state.opt_state)):
        leaves = jax.tree.leaves(tree)
        whole = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
        own = sum(map(shard_bytes, leaves))
        share = f"{whole / own:.2f} devices' worth" if own else ""
        table.add_row(name, f"{_mib(whole)} MiB", share, str(len(leaves)), _mib(own))
    return table


def _kinds(params: Any) -> Iterator[tuple[tuple[str, tuple[int, ...], str], list[Any]]]:
    """Parameters that differ in the number of their layer only, together."""
    kinds: dict[tuple[str, tuple[int, ...], str], list[Any]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = "/".join(str(getattr(entry, "key", entry)) for entry in path[1:])
        spec = tuple(getattr(leaf.sharding, "spec", ())) + (None,) * leaf.ndim
        cut = ", ".join(str(axis or "-") for axis in spec[: leaf.ndim])
        key = (re.sub(r"^layers_\d+/", "layers_*/", name), leaf.shape, cut)
        kinds.setdefault(key, []).append(leaf)
    yield from kinds.items()


def _mib(size: int) -> str:
    return f"{size / 2**20:,.2f}"
