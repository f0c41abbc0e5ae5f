"""Ops are traced for a declared platform, that of a mesh or that of this process."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType

import based_jax as bj
from based_jax import ops
from based_jax.ops.core import platforms
from tests.arrays import array
from tests.tolerances import FLOAT32, assert_close

KERNEL = "__gpu$xla.gpu.triton"
Q = array(np.random.default_rng(0).normal(size=(1, 6, 2, 4)), np.float32)
LONG = jax.ShapeDtypeStruct((1, 256, 2, 4), jnp.float32)


def taylor(q):
    return ops.taylor_attention(q, q, q)


def window(q):
    return ops.softmax_attention(q, q, q, left=3)


def steps(q):
    token, cache = q[:, 0], ops.init_kv_cache(1, 4, 2, 4, 4)
    y, _ = ops.window_step(token, token, token, cache)
    # The kernel returns a state in its own dtype, "xla" one in float32.
    return y, ops.taylor_step(token, token, token, ops.init_taylor_state(1, 2, 4, 4, jnp.bfloat16))


def conv(q):
    return ops.short_conv_step(q[:, :2, 0], q[0, :3, 0], ops.init_short_conv_state(1, 4, 3))


def lower(function, *platforms, x: Any = Q):
    return jax.jit(function).trace(x).lower(lowering_platforms=platforms).as_text()


@pytest.mark.parametrize(("function", "kernels"), [(taylor, 1), (window, 1), (steps, 2), (conv, 1)])
def test_a_declared_gpu_gets_the_kernels(function, kernels):
    x = LONG if function is window else Q
    with bj.lowering_for("cuda", device_kind="NVIDIA H100"):
        assert lower(function, "cuda", x=x).count(KERNEL) >= kernels
    assert KERNEL not in lower(function, "cuda", x=x), "without it the form is that of this process"


def test_exports_have_kernels_where_declared():
    plain = export.export(jax.jit(taylor), platforms=("cpu", "cuda"))(Q)
    assert_close(plain.call(Q), taylor(Q), FLOAT32)
    with bj.lowering_for("cuda", device_kind="NVIDIA H100"):
        with pytest.raises(ValueError, match="custom calls"):
            export.export(jax.jit(taylor), platforms=("cuda",))(Q)
        allowed = [export.DisabledSafetyCheck.custom_call(KERNEL)]
        made = export.export(jax.jit(taylor), platforms=("cuda",), disabled_checks=allowed)(Q)
    assert KERNEL in made.mlir_module()


def test_any_batch_is_exported():
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, 6, 2, 4"), jnp.float32)
    made = export.export(jax.jit(taylor), platforms=("cpu", "cuda"))(shape)
    assert_close(made.call(Q), taylor(Q), FLOAT32)


def test_derivatives_are_of_the_declared_platform():
    gradient = jax.jit(jax.grad(lambda q: taylor(q).sum()))
    assert KERNEL not in gradient.trace(Q).lower(lowering_platforms=("cuda",)).as_text()
    with bj.lowering_for("cuda", device_kind="NVIDIA H100"):  # the same function: nothing is reused
        assert KERNEL in gradient.trace(Q).lower(lowering_platforms=("cuda",)).as_text()
    with bj.lowering_for("cpu", "cuda"):
        assert ops.implementation_for("taylor_attention") == "xla"
    with bj.lowering_for("tpu"):
        assert ops.implementation_for("softmax_attention", LONG, LONG, LONG) == "xla"
    assert ops.implementation_for("softmax_attention", LONG, LONG, LONG) == "tiled"


def test_a_mesh_knows_its_devices():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert platforms.declared_platform() == "cpu"
    rows = jax.sharding.PartitionSpec("data")
    sharded = jax.jit(jax.shard_map(taylor, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
    assert_close(sharded(Q), taylor(Q), FLOAT32)


def test_constants_of_a_function_may_be_elsewhere():
    with bj.lowering_for("tpu"):
        assert platforms.platform_of([jnp.ones(3)]) == "tpu"


def test_the_innermost_declaration_counts():
    with bj.lowering_for("cuda", device_kind="NVIDIA H100"):
        for inner, has_kernels in {("cpu",): False, ("cpu", "cuda"): False, ("cuda",): True}.items():
            with bj.lowering_for(*inner):
                assert (KERNEL in lower(lambda q: taylor(q), *inner)) == has_kernels
        assert KERNEL in lower(taylor, "cuda")


def test_what_is_no_platform():
    for names, message in ((("gpu",), "platforms = 'gpu': expected one of"), ((), r"platforms = \(\)")):
        with pytest.raises(ValueError, match=message), bj.lowering_for(*names):
            pass
    with (
        pytest.raises(ValueError, match=r"device_kind = 'NVIDIA H100': expected None unless platforms ="),
        bj.lowering_for("cpu", device_kind="NVIDIA H100"),
    ):
        pass
