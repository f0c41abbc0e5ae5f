"""Sequences split over devices: every mixer gives the outputs and gradients of one device."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.tree_util import Partial

import pallas_kernels
from based_jax import mixers, ops
from based_jax.ops.core import sharding
from tests.arrays import normals
from tests.mixers.test_contract import CASES, WIDTH
from tests.subprocesses import run_python
from tests.tolerances import assert_close

DEVICES = 8
LENGTH = 3 * DEVICES
"""three tokens for each: windows and taps reach over several devices"""
ROOM, BEFORE = np.array([LENGTH, 17, 9])[:, None], np.array([0, 0, 5])[:, None]
MASK = (np.arange(LENGTH) >= BEFORE) & (np.arange(LENGTH) < BEFORE + ROOM)
"""padding after the tokens, and on both sides"""
SEGMENTS = np.array(
    [
        np.zeros(LENGTH, int),
        # Borders inside of parts, between them, and an id that comes again.
        np.repeat([0, 1, 2, 0, 1], [4, 5, 1, 11, 3]),
        np.repeat([5, 2], [LENGTH - 2, 2]),
    ]
)
OPS = ["attention", "gated_conv-long", "linear_attention", "mamba", "sliding_window"]
"""one for each kind of thing that is handed over"""
KINDS = ["linear_attention"]
"""those whose gradients are taken each time: sums of states"""
BARE = ["linear_attention"]
"""also without segments and masks, where other code runs"""
TOLERANCE = 1e-9
"""float64: the sums are taken in another order"""


@pytest.mark.release
def test_every_kind_on_eight_devices():
    """Compiling gradients takes most of the time: here of one kind, in the test of every mixer of all."""
    packed = [(name, True, "gradients" if name in KINDS else "values") for name in OPS]
    compare_all([*packed, *((name, False, "values") for name in BARE)])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_every_mixer_on_eight_devices(part):
    compare_all([(name, packed, "gradients") for name in list(CASES)[part::2] for packed in (True, False)])


def compare_all(calls: list[tuple[str, bool, str]]) -> None:
    run_python(
        "from tests.mixers.test_context_parallel import compare, compare_patterns\n"
        f"compare_patterns()\nfor call in {calls}: compare(*call)",
        devices=DEVICES,
    )


def compare_patterns() -> None:
    """A pattern of an array that is on the mesh, as BigBird's is in training, has the mesh in its type."""
    mesh = jax.make_mesh((DEVICES,), ("context",), axis_types=(AxisType.Auto,))
    tokens, whole = NamedSharding(mesh, PartitionSpec(None, "context")), NamedSharding(mesh, PartitionSpec())
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, LENGTH, 1, 4))
    cells = np.tri(LENGTH, dtype=bool)[::-1]

    def attend(q: Any, k: Any, v: Any, cells: Any, where: Any) -> Any:
        with sharding.over(where):
            return ops.softmax_attention(q, k, v, allowed=Partial(_allowed, cells))

    run = jax.jit(attend, static_argnums=4)
    with jax.enable_x64(True):
        y = run(*jax.device_put((q, k, v), tokens), jax.device_put(cells, whole), tokens)
        assert_close(y, run(q, k, v, cells, None), TOLERANCE, "a pattern")


def _allowed(cells: Any, i: Any, j: Any) -> Any:
    return cells.at[i, j].get(mode="clip") | (i == j)


def compare(case: str, packed: bool, program: str) -> None:
    """Outputs at real tokens, and the gradients of their weighted sum, on eight devices and on one."""
    with jax.enable_x64(True):
        mixer = mixers.make(case.partition("-")[0], d_model=WIDTH, dtype=jnp.float64, **CASES[case])
        x, weights = np.random.default_rng(0).normal(size=(2, 3, LENGTH, WIDTH))
        params = nn.meta.unbox(normals(mixer.init, x, dtype=np.float64))
        context = {"segment_ids": SEGMENTS, "mask": MASK} if packed else {}
        weights = np.where(MASK[..., None], weights, 0) if packed else weights
        function = {"values": values, "gradients": gradients}[program]
        results = [
            jax.jit(functools.partial(function, apply))(params, x, context, weights)
            for apply in (functools.partial(plain, mixer), functools.partial(split, mixer))
        ]
        (y, grads), (ours, our_grads) = results
        assert_close(np.where(weights, ours, 0), np.where(weights, y, 0), TOLERANCE, case)
        assert_close(our_grads, grads, TOLERANCE, case, magnitude=1.0)


def values(apply: Any, params: Any, x: Any, context: Any, weights: Any) -> Any:
    return apply(params, x, context), ()


def gradients(apply: Any, params: Any, x: Any, context: Any, weights: Any) -> Any:
    def total(params: Any, x: Any) -> Any:
        y = apply(params, x, context)
        return jnp.sum(y * weights), y

    grads, y = jax.grad(total, argnums=(0, 1), has_aux=True)(params, x)
    return y, grads


def plain(mixer: Any, params: Any, x: Any, context: Any) -> Any:
    return mixer.apply(params, x, **context)[0]


def split(mixer: Any, params: Any, x: Any, context: Any) -> Any:
    mesh = jax.make_mesh((DEVICES,), ("context",), axis_types=(AxisType.Auto,))
    tokens = NamedSharding(mesh, PartitionSpec(None, "context"))
    x, context = lax.with_sharding_constraint((x, context), tokens)
    with sharding.over(tokens):
        return plain(mixer, params, x, context)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 2), (1, 4)])
def test_the_fused_kernels_hand_over_their_sums(mesh):
    run_python(f"from tests.mixers.test_context_parallel import compare_kernels as c; c({mesh})", devices=4)


def compare_kernels(shape: tuple[int, int]) -> None:
    """In Pallas's interpreter, against the chunked scans of one device."""
    generator = np.random.default_rng(0)

    def drawn(*sizes: int) -> jax.Array:
        return jnp.asarray(generator.normal(size=sizes), jnp.float32)

    segment_ids = jnp.asarray(np.sort(generator.integers(0, 4, (2, 64)), axis=1), jnp.int32)
    x, A, maps = drawn(2, 64, 32), drawn(32, 4), (drawn(2, 64, 4), drawn(2, 64, 4))
    compare_kernel(shape, ops.taylor_attention, segment_ids, *(drawn(2, 64, 2, size) for size in (8, 8, 32)))
    compare_kernel(shape, ops.selective_scan, segment_ids, x, jax.nn.softplus(x), -jnp.exp(A), *maps)


def compare_kernel(shape: tuple[int, int], op: Any, segment_ids: jax.Array, *arrays: jax.Array) -> None:
    def gradients(implementation: str) -> Any:
        def total(*arrays: jax.Array) -> Any:
            y = op(*arrays, segment_ids=segment_ids, implementation=implementation)
            return jnp.sum(jnp.sin(y)), y

        return jax.grad(total, argnums=tuple(range(len(arrays))), has_aux=True)

    mesh = jax.make_mesh(shape, ("data", "context"), axis_types=(AxisType.Auto,) * 2)
    tokens = NamedSharding(mesh, PartitionSpec("data", "context"))

    def on_four(*arrays: jax.Array) -> Any:
        with sharding.over(tokens), pallas_kernels.interpreted():
            return gradients("pallas")(*arrays)

    ours = jax.jit(on_four)(*arrays)
    theirs = jax.jit(gradients("xla"))(*arrays)
    # float32 sums over 64 tokens, in another order; gradients are up to 2.
    chex.assert_trees_all_close(ours, theirs, rtol=1e-4, atol=1e-5)
