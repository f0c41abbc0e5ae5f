"""Take a layer's initialisation apart: constants, random arrays, and the draws that these are made of."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, jaxpr_as_fun

from based_jax.mixers.draws import DRAW_NORMAL, DRAW_UNIFORM
from based_jax.typing import Array

ROW = 1 << 16
"""Draws of one row of a stream: enough for several cores, few enough for their caches."""

Supply = Callable[[int, int, tuple[int, ...]], Array]
"""(distribution, start, shape) -> draws. Distribution 0 is N(0, 1), 1 is U(-1, 1). `start` counts the layer's
draws: first all normal ones; then, from the next multiple of `ROW`, the uniform ones."""

_DISTRIBUTIONS = (DRAW_NORMAL, DRAW_UNIFORM)


class Program(NamedTuple):
    """The traced initialisation of a layer."""

    tree: Any
    """structure of the layer's variables"""
    is_random: list[bool]
    """which leaves depend on the key"""
    constants: list[Array]
    """leaves that do not"""
    rows: tuple[int, int]
    """rows of its stream: of N(0, 1), and all"""
    random: Callable[[Array, Supply], list[Array]]
    """(key, supply) -> the other leaves"""
    shapes: list[Any]
    """theirs, and their dtypes"""

    def empty(self) -> list[Array]:
        """Return zeros in place of the random leaves."""
        return [jnp.zeros(each.shape, each.dtype) for each in self.shapes]

    def variables(self, random: list[Array]) -> Any:
        """Return the layer's variables with these random leaves."""
        pools = iter(self.constants), iter(random)
        return jax.tree.unflatten(self.tree, [next(pools[chosen]) for chosen in self.is_random])


def trace(draw: Callable[[Array], Any], key: Array) -> Program:
    """Trace `draw`; find its constants and the arrays that a stream can supply."""
    closed, shapes = cast(Any, jax.make_jaxpr(draw, return_shape=True)(key))
    jaxpr = closed.jaxpr
    slices: list[tuple[Any, int, int]] = []
    ends = [0, 0]
    for step in jaxpr.eqns:
        if step.params.get("name") in _DISTRIBUTIONS:
            (out,) = step.outvars
            which = _DISTRIBUTIONS.index(step.params["name"])
            slices.append((out, which, ends[which]))
            ends[which] += out.aval.size
    rows = [-(-end // ROW) for end in ends]
    random: set[Any] = set(jaxpr.invars)
    for step in jaxpr.eqns:
        if any(not isinstance(value, Literal) and value in random for value in step.invars):
            random |= set(step.outvars)
    is_random = [not isinstance(value, Literal) and value in random for value in jaxpr.outvars]
    outputs: tuple[list[Any], list[Any]] = ([], [])
    for value, chosen in zip(jaxpr.outvars, is_random, strict=True):
        outputs[chosen].append(value)
    drawn = [out for out, _, _ in slices]
    run = _part(closed, [*jaxpr.invars, *drawn], outputs[True])

    def random_leaves(key: Array, supply: Supply) -> list[Array]:
        arrays = [
            supply(which, which * rows[0] * ROW + start, out.aval.shape) for out, which, start in slices
        ]
        return run(key, *arrays)

    constants = _part(closed, [], outputs[False])()
    shapes_of_random = [value.aval for value in outputs[True]]
    return Program(
        tree=jax.tree.structure(shapes),
        is_random=is_random,
        constants=constants,
        rows=(rows[0], sum(rows)),
        random=random_leaves,
        shapes=shapes_of_random,
    )


def _part(closed: Any, inputs: list[Any], outputs: list[Any]) -> Callable[..., list[Array]]:
    """Return the part of a program that computes `outputs` from `inputs`, any of its values."""
    needed = {value for value in outputs if not isinstance(value, Literal)} - set(inputs)
    steps: list[Any] = []
    for step in reversed(closed.jaxpr.eqns):
        if needed.intersection(step.outvars):
            steps.append(step)
            needed |= {value for value in step.invars if not isinstance(value, Literal)} - set(inputs)
    jaxpr = closed.jaxpr.replace(invars=inputs, outvars=outputs, eqns=steps[::-1])
    return cast(Callable[..., list[Array]], jaxpr_as_fun(closed.replace(jaxpr=jaxpr)))
