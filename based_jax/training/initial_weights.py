"""Start a run from the weights of a checkpoint instead of random ones, with a fresh optimizer."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from based_jax.convert.layouts import flatten
from based_jax.convert.pretrained import load_pretrained
from based_jax.training.step import Programs, TrainState
from based_jax.typing import Array, Params
from based_jax.validate import expect


class Taken(NamedTuple):
    """Arrays by where they come from; paths such as "layers_0/mixer/q"."""

    names: list[str]  # from a checkpoint
    fresh: list[str]  # drawn at random: the checkpoint lacks the name, or has another shape (both are given)
    unused: list[str]  # in the checkpoint, but not in the model

    def summary(self) -> str:
        """Summarize in one line how many arrays are taken, and which are not."""
        count = len(self.names) + len(self.fresh)
        share = f"{len(self.names)} of {count}" if self.fresh or self.unused else f"all {count}"
        return f"{share} arrays{_some('fresh', self.fresh)}{_some('unused', self.unused)}"


def _some(kind: str, names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"; {kind}: {', '.join(names[:most])}{more}" if names else ""


def start_from(programs: Programs, directory: Path, mesh: Mesh | None = None) -> tuple[Programs, Taken]:
    """Return programs whose `init` takes a checkpoint's arrays where name and shape agree (at least one)."""
    stored = flatten(load_pretrained(directory, mesh=mesh)[1]["params"])
    wanted = flatten(programs.abstract_state.params["params"])
    taken = Taken([], [], sorted(stored.keys() - wanted.keys()))
    for path, leaf in wanted.items():
        there = stored[path].shape if path in stored else None
        if there == leaf.shape:
            taken.names.append(path)
        else:
            taken.fresh.append(f"{path} {leaf.shape}" + (f", {there} there" if there is not None else ""))
    expected = "weights of which at least one array fits this model"
    expect(bool(taken.names), "init_from", str(directory), expected)

    def weights() -> Params:
        # Read again rather than kept in memory during training.
        found = flatten(load_pretrained(directory, mesh=mesh)[1]["params"])
        return {"params": unflatten_dict({path: found[path] for path in taken.names}, sep="/")}

    return with_weights(programs, weights), taken


def with_weights(programs: Programs, weights: Callable[[], Params]) -> Programs:
    """Return programs whose `init` replaces random arrays by those of the same name from `weights`.

    Each `init` calls `weights`, which returns a subtree of the parameters, ``{"params": ...}``.
    """

    def init(key: Array) -> TrainState:
        state = programs.init(key)
        params: dict[Any, Any] = dict(flatten_dict(state.params))
        for path, leaf in flatten_dict(weights()).items():
            params[path] = jax.device_put(leaf, params[path].sharding)
        return dataclasses.replace(state, params=unflatten_dict(params))

    return dataclasses.replace(programs, init=init)
