"""Sequences split over devices: every mixer gives the outputs and gradients of one device."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from based_jax import mixers
from based_jax.ops import context_parallel
from tests.mixers.test_contract import CASES, WIDTH
from tests.subprocesses import run_python

DEVICES = 8
LENGTH = 3 * DEVICES
"""three tokens for each: windows and taps reach over several devices"""
MASK = np.arange(LENGTH) < np.array([LENGTH, 17, 9])[:, None]
SEGMENTS = np.array(
    [
        np.zeros(LENGTH, int),
        # Borders inside of parts, between them, and an id that comes again.
        np.repeat([0, 1, 2, 0, 1], [4, 5, 1, 11, 3]),
        np.repeat([5, 2], [LENGTH - 2, 2]),
    ]
)
BARE = ["attention", "gated_conv-long", "hyena", "linear_attention", "rwkv4", "sliding_window"]
"""also without segments and masks, where other code runs"""
TOLERANCE = 1e-9
"""float64: the sums are taken in another order"""


@pytest.mark.parametrize("part", range(3))
def test_eight_devices_give_what_one_gives(part):
    names = list(CASES)[part::3]
    bare = [name for name in names if name in BARE]
    run_python(
        "from tests.mixers.test_context_parallel import compare\n"
        f"for name in {names}: compare(name, packed=True)\n"
        f"for name in {bare}: compare(name, packed=False)",
        devices=DEVICES,
    )


def compare(case: str, packed: bool) -> None:
    """Outputs at real tokens, and the gradients of their weighted sum, on eight devices and on one."""
    with jax.enable_x64(True):
        mixer = mixers.make(case.partition("-")[0], d_model=WIDTH, dtype=jnp.float64, **CASES[case])
        x, weights = np.random.default_rng(0).normal(size=(2, 3, LENGTH, WIDTH))
        params = nn.meta.unbox(mixer.init(jax.random.key(0), x))
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        context = {"segment_ids": SEGMENTS, "mask": MASK} if packed else {}
        weights = np.where(MASK[..., None], weights, 0) if packed else weights
        results = [
            jax.jit(functools.partial(gradients, apply))(params, x, context, weights)
            for apply in (functools.partial(plain, mixer), functools.partial(split, mixer))
        ]
        (y, grads), (ours, our_grads) = results
        np.testing.assert_allclose(
            np.where(weights, ours, 0), np.where(weights, y, 0), TOLERANCE, TOLERANCE, err_msg=case
        )
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_allclose(
                ours, theirs, TOLERANCE, TOLERANCE * max(1, np.abs(theirs).max()), err_msg=case
            ),
            our_grads,
            grads,
        )


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
    x, context = lax.with_sharding_constraint(
        (x, context), NamedSharding(mesh, PartitionSpec(None, "context"))
    )
    with context_parallel.over(mesh):
        return plain(mixer, params, x, context)
