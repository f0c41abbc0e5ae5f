"""Tabulate how parameters and optimizer state are sharded over the devices."""

import math
import re
from typing import Any

import jax
from rich.table import Column, Table

from based_jax.training.step import TrainState


def shard_bytes(leaf: Any) -> int:
    """Return the bytes of one device's shard of an abstract array."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def layout_table(state: TrainState) -> Table:
    """Tabulate an abstract state: each kind of parameter, its sharded axes, bytes per device, and totals."""
    numbers = (Column(name, justify="right") for name in ("copies", "MiB each"))
    columns = ("parameter", "shape", "cut over", *numbers)
    table = Table(*columns, title="Layout on one device", title_justify="left")
    for (name, shape, cut), leaves in _kinds(state.params).items():
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


def _kinds(params: Any) -> dict[tuple[str, tuple[int, ...], str], list[Any]]:
    """Group parameters that differ only in their layer index."""
    kinds: dict[tuple[str, tuple[int, ...], str], list[Any]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = "/".join(str(getattr(entry, "key", entry)) for entry in path[1:])
        spec = tuple(getattr(leaf.sharding, "spec", ())) + (None,) * leaf.ndim
        cut = ", ".join(str(axis or "-") for axis in spec[: leaf.ndim])
        key = (re.sub(r"^layers_\d+/", "layers_*/", name), leaf.shape, cut)
        kinds.setdefault(key, []).append(leaf)
    return kinds


def _mib(size: int) -> str:
    return f"{size / 2**20:,.2f}"
