"""What `implementation=None` picks on GPUs: the measured winners of their family, elsewhere the kernels."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from based_jax import ops
from based_jax.ops.core.products import in_loop_over_tokens, row_products
from based_jax.ops.norm import add_rms_norm
from pallas_kernels import lowering_for
from pallas_kernels.taylor_attention import mosaic_support

HOPPER = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
OTHERS = ("NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA B200")


def _shape(*sizes: int, dtype: Any = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype))


def attention(rows: int, length: int, value_size: int = 64, **options: Any) -> str:
    sizes = (16, 16, value_size)
    arrays = [_shape(rows, length, 16, size, **options) for size in sizes]
    return ops.implementation_for("taylor_attention", *arrays)


def taylor_step(rows: int, dtype: str, key_size: int = 16) -> str:
    q, v = _shape(rows, 16, key_size), _shape(rows, 16, 64)
    state = jax.eval_shape(lambda: ops.init_taylor_state(rows, 16, key_size, 64, jnp.dtype(dtype)))
    return ops.implementation_for("taylor_step", q, q, v, state)


def window_step(rows: int, *rotary_dim: int, slots: int = 64) -> str:
    x = _shape(rows, 16, 64)
    cache = jax.eval_shape(lambda: ops.init_kv_cache(rows, slots, 16, 64, 64, jnp.bfloat16))
    return ops.implementation_for("window_step", x, x, x, cache, *rotary_dim)


def selective_scan(length: int, channels: int = 64) -> str:
    x, maps = _shape(2, length, channels), _shape(2, length, 16)
    return ops.implementation_for("selective_scan", x, x, maps)


def recurrence(op: str, length: int, key_size: int = 128) -> str:
    x = _shape(2, length, 4, key_size)
    return ops.implementation_for(op, x, x, x)


def kernels_of(kind: str, length: int) -> set[str]:
    """Kernels of a residual sum with its norm, and of a product with one row."""
    x, stream, scale = _shape(1, length, 64), _shape(1, length, 64, dtype="float32"), _shape(64)

    def run(x, stream, scale, weights):
        with in_loop_over_tokens():
            products = row_products(x[:, :1], weights)
        return products, add_rms_norm(stream, x, scale, dtype=x.dtype)[:2]

    with lowering_for(kind):
        program = str(jax.make_jaxpr(run)(x, stream, scale, _shape(64, 64)))
    return set(re.findall(r"name=(row_products|rms_norm_outputs)\b", program))


@pytest.fixture(autouse=True)
def with_mosaic(monkeypatch):
    """As in a jax that has the kernels for Hopper."""
    monkeypatch.setattr(mosaic_support, "RELEASE", (0, 10))


SIZES = [(4, 8192), (16, 32768), (1, 32768), (1, 1024), (64, 1024), (16, 2048), (4, 16384)]


@pytest.mark.parametrize("kind", HOPPER)
def test_hopper_gets_what_won_on_it(kind, monkeypatch):
    with lowering_for(kind):
        assert {attention(*size) for size in SIZES} == {"mosaic"}
        assert {taylor_step(rows, "float32") for rows in (1, 32, 128, 512)} == {"xla"}
        assert {taylor_step(rows, "bfloat16") for rows in (32, 128, 512)} == {"pallas"}
        assert [window_step(rows) for rows in (1, 2, 7)] == ["xla"] * 3
        assert {window_step(rows) for rows in (8, 32, 64, 128, 512, 1024)} == {"pallas"}
        assert ops.implementation_for("taylor_step", *[_shape(1, 16, 16)] * 2, _shape(1, 16, 64)) == "xla"
        monkeypatch.setattr(mosaic_support, "RELEASE", (99, 0))
        assert attention(4, 8192) == "pallas"


ROW, NORM = "row_products", "rms_norm_outputs"


@pytest.mark.parametrize("kind", [*HOPPER, *OTHERS])
def test_single_tokens_take_the_kernels_where_these_won(kind):
    assert kernels_of(kind, 1) == ({ROW, NORM} if kind in HOPPER else set())
    assert kernels_of(kind, 2) == ({ROW, NORM} if kind in HOPPER else {NORM})


def test_what_was_not_measured_stays_with_the_kernels():
    with lowering_for(HOPPER[0]):
        assert attention(1, 512) == attention(4, 8192, 112) == attention(4, 8192, dtype="float32") == "pallas"
        assert taylor_step(32, "float32", key_size=8) == "pallas"
        assert window_step(2, 64) == window_step(2, slots=128) == "pallas"


@pytest.mark.parametrize("kind", OTHERS)
def test_other_gpus_have_no_measurement_and_keep_the_kernels(kind):
    with lowering_for(kind):
        assert {attention(*size) for size in SIZES} == {"pallas"}
        for rows in (2, 512):
            assert taylor_step(rows, "float32") == window_step(rows) == "pallas"


def test_recurrences_of_few_tokens_or_odd_channels_stay_with_xla():
    with lowering_for():
        found = [selective_scan(*sizes) for sizes in ((16,), (2048,), (15,), (1,), (64, 48))]
        sizes = (16,), (2048, 72), (15,), (1,), (64, 257)
        names = "delta_rule", "linear_attention", "linear_recurrence"
        every = [[recurrence(name, *each) for each in sizes] for name in names]
        sizes = (16,), (2048, 72), (15,), (1,), (64, 129)
        every.append([recurrence("generalized_delta_rule", *each) for each in sizes])
    assert [found] * 4 == every == [["pallas", "pallas", "xla", "xla", "xla"]] * 4


def test_arguments_that_no_kernel_takes_stay_with_xla(unchecked):
    """Under x64 NumPy's numbers are float64; a traced eps is no number that a kernel is compiled for."""
    x, state = _shape(1, 32, 2, 16), jax.eval_shape(lambda: ops.init_taylor_state(1, 2, 16, 16))
    row, numbers, channels, maps = _shape(1, 2, 16), _shape(1, 32, 2), _shape(1, 32, 64), _shape(1, 32, 16)
    with jax.enable_x64(True), lowering_for():
        for op, args, name, narrow in (
            (ops.delta_rule, (x, x, x), "beta", numbers),
            (ops.generalized_delta_rule, (x, x, x, x), "b", x),
            (ops.selective_scan, (channels, channels, _shape(64, 16), maps), "C", maps),
            (ops.taylor_attention, (x, x, x), "eps", None),
            (ops.taylor_step, (row, row, row, state), "eps", None),
        ):
            shape = () if narrow is None else narrow.shape
            wide = jax.ShapeDtypeStruct(shape, jnp.float32 if narrow is None else jnp.float64)
            program = jax.make_jaxpr(lambda *args, op=op, name=name: op(*args[:-1], **{name: args[-1]}))
            assert "pallas_call" not in str(program(*args, wide)), op
            kept = program(*args, narrow) if narrow else jax.make_jaxpr(op)(*args)
            assert "pallas_call" in str(kept), op
