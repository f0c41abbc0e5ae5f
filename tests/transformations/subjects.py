"""What is transformed: every op by each implementation that a CPU can run, and every mixer."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import numpy as np

import pallas_kernels
from based_jax import mixers, ops
from based_jax.ops.core.implementations import DECLARED
from based_jax.testing.arrays import normals
from tests.arrays import array
from tests.test_eager import BATCH, CALLS, CASES

CPU = ("xla", "tiled", "reference")
"""implementations that run as they are; "pallas" is interpreted"""

WIDTH, LENGTH = 12, 7


@dataclass(frozen=True, eq=False)
class Subject:
    """A function of arrays, which all transformations are with respect to."""

    function: Callable[..., Any]
    arrays: tuple[jax.Array, ...]
    is_interpreted: bool = False

    def context(self) -> contextlib.AbstractContextManager[None]:
        """Where everything happens that is done with the subject."""
        return pallas_kernels.interpreted() if self.is_interpreted else contextlib.nullcontext()

    def __call__(self, *arrays: Any) -> Any:
        return self.function(*arrays)


def names() -> list[str]:
    """Ops as "op" or "op implementation", mixers as "mixers.case"."""
    of_ops = [name for op in CALLS for name in ([f"{op} {how}" for how in _runnable(op)] or [op])]
    return of_ops + [f"mixers.{case}" for case in CASES]


def _runnable(op: str) -> list[str]:
    declared = DECLARED[op].names if op in DECLARED else ()
    return [name for name in declared if name in (*CPU, "pallas")]


@functools.cache
def subject(name: str) -> Subject:
    """Return a subject by its name, with arrays on the device."""
    if name.startswith("mixers."):
        return mixer(name.removeprefix("mixers."))
    op, _, how = name.partition(" ")
    args, options = _arguments(op)
    if how == "tiled":  # no windows
        del options["left"]
    leaves, tree = jax.tree.flatten((args, options | ({"implementation": how} if how else {})))
    is_array = [isinstance(leaf, jax.Array) for leaf in leaves]

    def call(*arrays: Any) -> Any:
        rest = iter(arrays)
        merged = [next(rest) if yes else leaf for leaf, yes in zip(leaves, is_array, strict=True)]
        args, options = jax.tree.unflatten(tree, merged)
        return getattr(_home(op), op)(*args, **options)

    arrays = tuple(leaf for leaf, yes in zip(leaves, is_array, strict=True) if yes)
    return Subject(call, arrays, is_interpreted=how == "pallas")


def _home(op: str) -> Any:
    """Return the module whose attribute the example of an op calls."""
    modules = ops, ops.conv_basis, ops.nystrom, ops.selection
    return next(module for module in modules if hasattr(module, op))


def _arguments(op: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what the example of an op calls it with."""
    function, *arrays = CALLS[op]
    with mock.patch.object(_home(op), op) as recorded:
        function(*arrays)
    if not recorded.called:  # the op itself is the example
        return tuple(arrays), {}
    args = (array(x) if isinstance(x, np.ndarray) else x for x in recorded.call_args.args)
    return tuple(args), dict(recorded.call_args.kwargs)


def mixer(case: str, **options: Any) -> Subject:
    """Return the outputs of a mixer as a function of its inputs."""
    module = mixers.make(case.partition("-")[0], d_model=WIDTH, **CASES[case], **options)
    x = array(np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDTH)), np.float32)
    tokens = {"tokens": array(np.zeros((BATCH, LENGTH)), np.int32)} if module.wants_tokens else {}
    variables = normals(functools.partial(module.init, **tokens), x, dtype=np.float32)
    return Subject(lambda x: module.apply(variables, x, **tokens)[0], (x,))
