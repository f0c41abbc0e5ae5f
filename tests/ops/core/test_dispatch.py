"""A name means that implementation or an error; None means the best, and it can be asked which."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from based_jax import ops
from based_jax.ops.core import implementations
from tests.arrays import ones

OPS = [
    "linear_attention",
    "taylor_attention",
    "taylor_step",
    "softmax_attention",
    "window_step",
    "diagonal_ssm",
    "long_conv",
]
STEPS = ("taylor_step", "window_step")
WITH_KERNELS = ["taylor_attention", *STEPS]


def arrays(op, dtype=jnp.float32, key_size=4):
    """q, k, v as the op takes them."""
    shape = (1, 3) if op in STEPS else (1, 2, 3)
    return [ones((*shape, size), dtype) for size in (key_size, key_size, 5)]


@pytest.mark.parametrize("op", OPS)
def test_without_a_gpu_the_default_is_xla(op):
    assert "reference" in ops.implementations(op)
    assert ops.implementation_for(op) == ops.implementation_for(op, *arrays(op)) == "xla"


@pytest.mark.parametrize("op", OPS)
def test_a_name_is_taken_at_its_word(op):
    for name in ("xla", "reference"):
        assert ops.implementation_for(op, implementation=name) == name
    with pytest.raises(ValueError, match=f"implementation = 'cuda': expected None or one of .* for {op}"):
        ops.implementation_for(op, implementation="cuda")


@pytest.mark.parametrize("op", WITH_KERNELS)
def test_where_kernels_run_they_are_the_default_for_what_they_take(op):
    """Lowered for a GPU that is not there, and in the interpreter."""
    plain, half = arrays(op), arrays(op, jnp.bfloat16)
    for context in (pallas_kernels.lowering_for, pallas_kernels.interpreted):
        with context():
            assert ops.implementation_for(op, *plain) == "pallas"
            assert ops.implementation_for(op, *half, implementation="pallas") == "pallas"
            assert ops.implementation_for(op, *plain, unsupported="no such option") == "xla"
            with pytest.raises(ValueError, match="'pallas': no such option"):
                ops.implementation_for(op, *plain, implementation="pallas", unsupported="no such option")


def test_an_op_without_a_twin_is_xlas_where_only_those_run(monkeypatch):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((1, 2, 8), (3, 8))]
    with pallas_kernels.lowering_for():
        assert ops.implementation_for("short_conv_step", *arrays) == "pallas"
        monkeypatch.setattr(pallas_kernels, "cannot_launch", lambda kernel: "was removed")
        assert ops.implementation_for("short_conv_step", *arrays) == "xla"


def test_kernels_that_would_be_slow_run_on_request_only():
    wide = arrays("taylor_attention", key_size=24)
    with pallas_kernels.interpreted():
        assert ops.implementation_for("taylor_attention", *wide) == "xla"
        assert ops.implementation_for("taylor_attention", *wide, implementation="pallas") == "pallas"
        narrow = arrays("taylor_attention", jnp.bfloat16, key_size=24)
        assert ops.implementation_for("taylor_attention", *narrow) == "pallas"


@pytest.mark.parametrize("op", ["taylor_attention", "taylor_step"])
def test_what_the_kernels_do_not_take(op):
    wide = arrays(op, key_size=33)
    double = [np.ones(x.shape) for x in arrays(op)]
    with pallas_kernels.interpreted():
        for unfit, what in ((wide, "33"), (double, "float64")):
            assert ops.implementation_for(op, *unfit) == "xla"
            with pytest.raises(ValueError, match=f"implementation = 'pallas': .*{what}"):
                ops.implementation_for(op, *unfit, implementation="pallas")


@pytest.mark.parametrize("op", ["taylor_step", "window_step"])
def test_triton_without_its_packages(op, monkeypatch):
    monkeypatch.setattr(implementations, "_has_module", lambda module: False)
    with pytest.raises(
        ValueError, match=r"'triton': needs triton and jax_triton; install based-jax\[triton\]"
    ):
        ops.implementation_for(op, *arrays(op), implementation="triton")


def test_unknown_op():
    with pytest.raises(ValueError, match=r"op = 'attention': expected one of .*'linear_attention'"):
        ops.implementations("attention")
    with pytest.raises(ValueError, match="op = 'attention'"):
        ops.implementation_for("attention", implementation="xla")


def test_arrays_that_are_not_those_of_the_op():
    q = ones((2, 3, 2, 4))
    with pytest.raises(ValueError, match=r"shape of q = \(2,\): expected that of q in delta_rule"):
        ops.implementation_for("delta_rule", *[ones(2)] * 3)
    with pytest.raises(ValueError, match="number of arrays = 2: expected none, or 3 for delta_rule: q, k, v"):
        ops.implementation_for("delta_rule", q, q)
    with pytest.raises(TypeError, match="k = None: expected an array"):
        ops.implementation_for("softmax_attention", q, None, q)


def test_outside_jit_the_arrays_device_decides(monkeypatch):
    """Arrays on a CPU beside a GPU: what is compiled for the call does not see them: it is declared."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    q = ones((1, 3, 1, 4))
    with pytest.raises(ValueError, match="these arrays are on 'cpu'"):
        ops.taylor_attention(q, q, q, implementation="pallas")
    assert jnp.isfinite(ops.taylor_attention(q, q, q)).all()
