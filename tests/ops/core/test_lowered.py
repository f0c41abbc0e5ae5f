"""Lowering picks the implementations of the platform that it is for, at no cost where it is this one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType

import based_jax as bj
from based_jax import ops
from based_jax.ops.core import dispatch, lowered, products
from based_jax.ops.norm import add_rms_norm
from tests.arrays import array
from tests.ops.core.test_dispatch import OPS
from tests.tolerances import FLOAT32, FLOAT32_GRADIENT, assert_close

KERNEL = "__gpu$xla.gpu.triton"
Q = array(np.random.default_rng(0).normal(size=(1, 6, 2, 4)), np.float32)
LONG = jax.ShapeDtypeStruct((1, 256, 2, 4), jnp.float32)


def taylor(q):
    return ops.taylor_attention(q, q, q)


def full(q):
    return ops.softmax_attention(q, q, q)


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
def test_a_gpu_gets_the_kernels(function, kernels):
    x = LONG if function is window else Q
    assert lower(function, "cuda", x=x).count(KERNEL) >= kernels
    assert lower(function, "cpu", "cuda", x=x).count(KERNEL) >= kernels
    for platform in ("cpu", "tpu", "rocm"):
        assert KERNEL not in lower(function, platform, x=x)


def test_tiles_are_for_cpus():
    tiled, plain = (
        lower(lambda q, name=name: ops.softmax_attention(q, q, q, implementation=name), "tpu", x=LONG)
        for name in ("tiled", "xla")
    )
    assert [lower(full, platform, x=LONG).count("while") for platform in ("cpu", "cuda", "tpu")] == [
        tiled.count("while"),
        *[plain.count("while")] * 2,
    ]
    assert tiled.count("while") > plain.count("while")


def test_a_gpus_process_lowers_for_cpus(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    traced = jax.jit(lambda q: taylor(q)).trace(Q)
    assert "pallas_call" in str(traced.jaxpr)
    assert KERNEL not in traced.lower(lowering_platforms=("cpu",)).as_text()


def test_traced_once():
    """But for other platforms, when they are asked for."""
    chosen = []

    @lowered.by_platform
    def op(x):
        chosen.append(dispatch.platform([x]))
        return 2 * x

    traced = jax.jit(lambda x: op(x)).trace(Q)
    traced.lower()
    traced.lower(lowering_platforms=("cpu",))
    assert chosen == ["cpu"]
    traced.lower(lowering_platforms=("tpu", "cuda"))
    traced.lower(lowering_platforms=("cuda",))
    assert chosen == ["cpu", "tpu", "gpu"] or chosen == ["cpu", "gpu", "tpu"]


def test_no_tracer_outlives_its_trace():
    with jax.checking_leaks():
        jax.jit(lambda q: taylor(q) + 1)(Q)
        jax.jit(jax.grad(lambda q: taylor(q).sum()))(Q)


def test_transformations():
    """All of them at once, against calls outside `jit`, whose device is known."""

    def loss(q):
        return jnp.sum(jnp.sin(taylor(q)))

    def scanned(q):
        return jax.lax.scan(lambda total, q: (total + jax.checkpoint(loss)(q), taylor(q)), 0.0, q)

    def everything(q):
        rows = jnp.stack([q, -q])
        gradients = jax.vmap(jax.grad(lambda q: scanned(q[None])[0]))(rows)
        return scanned(rows)[1], gradients, jax.jvp(taylor, (q,), (q,))

    found = jax.jit(everything)(Q)
    expected = [np.stack([f(Q), f(-Q)]) for f in (taylor, jax.grad(loss))]
    assert_close(found, (*expected, jax.jvp(taylor, (Q,), (Q,))), FLOAT32_GRADIENT)


def test_integers_have_no_derivative():
    """Targets of a loss, and counters of a state, through a loop, which is traced before it is derived."""

    def loop(q):
        def body(state, q):
            y, state = ops.taylor_step(q, q, q, state)
            hidden = y.reshape(1, 2, 4)
            return state, y.sum() + ops.cross_entropy(hidden, Q[0, :3, 0], jnp.ones((1, 2), int), y[..., 0])

        return jax.lax.scan(body, ops.init_taylor_state(1, 2, 4, 4), jnp.moveaxis(q, 1, 0))[1].sum()

    found, slope = jax.jit(jax.value_and_grad(loop))(Q)
    step = 1e-2 * jnp.sign(slope)
    assert_close((loop(Q + step) - loop(Q - step)) / 2, jnp.sum(step * slope), 1e-3)
    assert_close(found, loop(Q), FLOAT32)


def test_exports_are_free_of_kernels_unless_declared():
    plain = export.export(jax.jit(taylor), platforms=("cpu", "cuda"))(Q)
    assert KERNEL not in plain.mlir_module()
    assert_close(plain.call(Q), taylor(Q), FLOAT32)
    with bj.lowering_for("cuda"):
        with pytest.raises(ValueError, match="custom calls"):
            export.export(jax.jit(taylor), platforms=("cuda",))(Q)
        allowed = [export.DisabledSafetyCheck.custom_call(KERNEL)]
        made = export.export(jax.jit(taylor), platforms=("cuda",), disabled_checks=allowed)(Q)
    assert KERNEL in made.mlir_module()


def test_exports_made_on_a_gpu_are_free_of_gates_and_norms(monkeypatch):
    """These kernels have no name as an implementation: the process's platform alone picks them."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def layer(x):
        y = products.fused_gate(x.reshape(1, 6, 2, 4))
        return None if y is None else add_rms_norm(y, y, x[0, 0, 0])

    lowered = jax.jit(layer).trace(Q).lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count(f"custom_call @{KERNEL}") == 2
    made = export.export(jax.jit(layer), platforms=("cuda",))(Q)
    assert KERNEL not in made.mlir_module()


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


@pytest.mark.parametrize("name", ["xla", "reference"])
def test_a_name_leaves_nothing_open(name):
    jaxpr = jax.make_jaxpr(lambda q: ops.taylor_attention(q, q, q, implementation=name))(Q)
    assert lowered.PRIMITIVE not in [equation.primitive for equation in jaxpr.eqns]


def test_ops_that_are_the_same_anywhere_leave_nothing_open():
    jaxpr = jax.make_jaxpr(lambda q: ops.linear_attention(q, q, q))(Q)
    assert lowered.PRIMITIVE not in [equation.primitive for equation in jaxpr.eqns]
    assert {"linear_attention", "taylor_attention"} <= set(OPS)


def test_a_mesh_knows_its_devices():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert dispatch.declared_platform() == "cpu"
        jaxpr = jax.make_jaxpr(taylor)(Q)
    assert lowered.PRIMITIVE not in [equation.primitive for equation in jaxpr.eqns]
    rows = jax.sharding.PartitionSpec("data")
    sharded = jax.jit(jax.shard_map(taylor, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))
    assert_close(sharded(Q), taylor(Q), FLOAT32)


def test_what_is_no_platform():
    for platforms, message in ((("gpu",), "platforms = 'gpu': expected one of"), ((), r"platforms = \(\)")):
        with pytest.raises(ValueError, match=message), bj.lowering_for(*platforms):
            pass
    with (
        pytest.raises(ValueError, match=r"device_kind = 'NVIDIA H100': expected None unless platforms ="),
        bj.lowering_for("cpu", device_kind="NVIDIA H100"),
    ):
        pass
