"""Rows and heads over 8 devices: the same numbers, the same sharding, nothing moved between devices."""

import math

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels import interpreted
from tests.kernels import sharded
from tests.kernels.sharded import collectives
from tests.subprocesses import run_python
from tests.tolerances import FLOAT32_GRADIENT, assert_close

BATCH, HEADS, LENGTH = 4, 2, 24


def _example(call: sharded.Call) -> list[np.ndarray]:
    """Normal numbers; integers (segments, lengths) that do not decrease."""
    rng = np.random.default_rng(0)
    return [
        np.sort(rng.integers(0, 4, x.shape), axis=-1).astype(x.dtype)
        if np.issubdtype(x.dtype, np.integer)
        else rng.standard_normal(x.shape).astype(x.dtype)
        for x in call.arguments
    ]


def check(names: list[str], mixed: list[str]) -> None:
    """All of this file, in one process with 8 devices; of `mixed` each array is whole in turn, too."""
    check_detection()
    calls = {call.name: call for call in sharded.calls(BATCH, HEADS, LENGTH, np.float32)}
    for name in names:
        check_call(calls[name])
    for name in mixed:
        for index in range(len(calls[name].arguments)):
            check_mixed_call(calls[name], index)
    check_partly_manual(calls[mixed[0]])


def check_mixed_call(call: sharded.Call, index: int) -> None:
    """Array `index` is whole on every device, and the others are split: the same numbers."""
    arguments = _example(call)
    placed = [like.sharding for like in call.sharded(sharded.mesh(jax.devices()))]
    placed[index] = NamedSharding(placed[index].mesh, PartitionSpec())
    split = [jax.device_put(x, sharding) for x, sharding in zip(arguments, placed, strict=True)]
    with interpreted():
        results, expected = (jax.jit(call.function)(*given) for given in (split, arguments))
    assert_close(results, expected, FLOAT32_GRADIENT, f"{call.name}, array {index} whole")


def check_partly_manual(call: sharded.Call) -> None:
    """Within `shard_map` over the rows alone, heads may be split, alike in all arrays."""
    mesh, arguments = sharded.mesh(jax.devices()[:4]), _example(call)
    rows, other = PartitionSpec("data"), NamedSharding(mesh, PartitionSpec(("data", "tensor")))
    specs = {"mesh": mesh, "in_specs": rows, "out_specs": rows, "axis_names": {"data"}, "check_vma": False}
    split = [jax.device_put(x, like.sharding) for x, like in zip(arguments, call.sharded(mesh), strict=True)]
    with interpreted():
        function = jax.jit(jax.shard_map(call.function, **specs))
        assert_close(function(*split), jax.jit(call.function)(*arguments), FLOAT32_GRADIENT, call.name)
        by_keys = NamedSharding(mesh, PartitionSpec("data", None, "tensor"))  # an axis that stays whole
        whole = [jax.device_put(x, NamedSharding(mesh, rows)) for x in arguments]
        whole[0] = jax.device_put(arguments[0], by_keys)
        assert_close(function(*whole), jax.jit(call.function)(*arguments), FLOAT32_GRADIENT, call.name)
        split[0] = jax.device_put(arguments[0], other)
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"axis = '.': expected one that is split alike"):
            function(*split)


def check_call(call: sharded.Call) -> None:
    name, mesh = call.name, sharded.mesh(jax.devices())
    assert mesh.size == 8
    arguments = _example(call)
    split = [jax.device_put(x, like.sharding) for x, like in zip(arguments, call.sharded(mesh), strict=True)]
    with interpreted():
        expected = jax.jit(call.function)(*arguments)
        compiled = jax.jit(call.function).lower(*split).compile()
    results = compiled(*split)
    assert_close(results, expected, FLOAT32_GRADIENT, name)
    assert collectives(compiled.as_text() or "") == [], name
    letters = set(" ".join(call.axes).split())
    shares = math.prod(mesh.shape[axis] for letter, axis in sharded.MESH_AXES.items() if letter in letters)
    for result in jax.tree.leaves(results):
        places = {str(shard.index) for shard in result.addressable_shards}
        assert len(places) == shares, f"{name}: {result.sharding}"


def check_detection() -> None:
    """A sum over rows that are split needs a collective, and a forgotten wrapper would, too."""
    mesh = sharded.mesh(jax.devices())
    x = jax.device_put(np.ones((8, 4)), NamedSharding(mesh, PartitionSpec("data", "tensor")))
    text = jax.jit(lambda x: x.sum(0)).lower(x).compile().as_text()
    assert collectives(text or "") == ["all-reduce"]


@pytest.mark.parametrize(
    ("names", "mixed"),
    [
        pytest.param(
            [
                *("taylor_attention backward", "window_attention backward", "taylor_step", "window_step"),
                *("conv_step", "row_products", "conv_row_product", "gated_conv backward"),
                *("rms_norm", "softmax_loss", "selective_scan backward", "delta_rule backward"),
                *("linear_recurrence", "low_rank backward"),
            ],
            ["taylor_step", "conv_step"],
            marks=pytest.mark.release,
        ),
        pytest.param(
            ["taylor_attention with state", "taylor_attention packed"],
            ["window_attention backward", "selective_scan backward", "taylor_attention packed"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=", ".join,
)
def test_sharded_calls_need_no_collective(names, mixed):
    run_python(f"from tests.kernels.test_sharding import check; check({names}, {mixed})", devices=8)
