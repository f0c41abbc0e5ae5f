"""On a GPU: every variant against float64 and against itself, in place, by default, and in a whole model.

`JAX_PLATFORMS=cuda,cpu pytest -m gpu tests/kernels`. The checks are those of `python -m benchmarks gpu`. Some
run in the interpreter, too, on small sizes, so that they do not rot where there is no GPU.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from based_jax import ops
from benchmarks.gpu.sections.checks import (
    TOLERANCES,
    Attention,
    Outcome,
    Step,
    Window,
    WindowAttention,
    error_by_part,
    same_bits,
)
from benchmarks.gpu.sections.correctness import Addresses, every_check, mosaic_twins, triton_twins
from benchmarks.gpu.sections.recurrences import LinearRecurrence, Scan
from pallas_kernels import interpreted

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")

KERNEL = "__gpu$xla.gpu.triton"

TF32, BFLOAT16 = TOLERANCES["float32", None], TOLERANCES["bfloat16", None]

SMALL = [
    Attention(key_size=8, value_size=32, dtype="float16", packed=True).tiny(),
    Step(state="bfloat16").tiny(),
    Addresses().tiny(),
    Window(slots=65, rotary=pallas_kernels.Rotary(32), dtype="float32").tiny(),
    WindowAttention(left=15, heads=4, dtype="float32", packed=True).tiny(),
    Scan(packed=True).tiny(),
    LinearRecurrence(packed=True).tiny(),
    LinearRecurrence(erases=False).tiny(),
    LinearRecurrence(packed=True, per_channel=True).tiny(),
    LinearRecurrence(erases=False, per_channel=True).tiny(),
]
"""Together every part of the checks, and other options than the command's own test has."""


def assert_passes(check) -> None:
    assert not (problem := check.run().problem), f"{check.name}: {problem}"


@pytest.mark.gpu
@pytest.mark.parametrize("check", every_check(), ids=lambda check: check.name)
def test_a_variant_against_float64_and_against_itself(check):
    assert_passes(check)


@pytest.mark.gpu
@pytest.mark.parametrize("check", triton_twins(), ids=lambda check: check.name)
def test_the_triton_twin_against_float64(check):
    pytest.importorskip("jax_triton")
    assert_passes(check)


@pytest.mark.gpu
@pytest.mark.parametrize("check", mosaic_twins(), ids=lambda check: check.name)
def test_the_mosaic_twin_against_float64(check):
    if reason := pallas_kernels.supports_mosaic_taylor_attention():
        pytest.skip(reason)
    assert_passes(check)


@pytest.mark.slow
@pytest.mark.parametrize("check", SMALL, ids=lambda check: check.name)
def test_the_checks_pass_in_the_interpreter(check):
    with interpreted():
        assert_passes(check)


@pytest.mark.release
@pytest.mark.parametrize(
    "change", [lambda y: 1.1 * y, lambda y: y.at[0, 0, 0].set(jnp.nan)], ids=["10 %", "NaN"]
)
def test_the_checks_can_fail(change, monkeypatch):
    step = pallas_kernels.taylor_step
    monkeypatch.setattr(pallas_kernels, "taylor_step", lambda *x, **_: (change(step(*x)[0]), *step(*x)[1:]))
    with interpreted():
        outcome = Step().tiny().run()
    assert "result 0 is off by" in outcome.problem
    assert "result 1" not in outcome.problem


def test_parts_that_must_be_zero_are_compared_with_the_largest_gradient():
    """The gradient of queries with one visible key, and padding."""
    zero, small, large = (jnp.full((1, 128, 2), value, jnp.bfloat16) for value in (0.0, 1e-5, 0.1))
    expected = np.zeros(zero.shape)
    assert error_by_part(expected, zero) == 0
    assert error_by_part(expected, small, largest=1.0) < TOLERANCES["float16", None]
    assert error_by_part(expected, large, largest=1.0) > BFLOAT16
    expected[:, :64] = 1
    assert error_by_part(expected, zero.at[:, :64].set(1)) == 0
    assert error_by_part(expected, large.at[:, :64].set(1)) > BFLOAT16
    assert error_by_part(expected, large.at[:, 100].set(jnp.nan)) == np.inf


def test_results_that_differ_between_runs_are_a_problem():
    assert same_bits([np.ones(3)], [np.ones(3)])
    assert not same_bits([np.ones(3)], [np.array([1, 1, 1 + 1e-15])])
    assert Outcome({"y": 0.0}, 1e-2, deterministic=False).problem == "two runs differ"


def example(length: int, dtype=jnp.bfloat16) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [
        jax.random.normal(key, (2, length, 4, n), dtype) for key, n in zip(keys, (16, 16, 64), strict=True)
    ]


@pytest.mark.gpu
def test_the_kernels_are_what_runs_by_default():
    q, k, v = example(128)
    assert ops.implementation_for("taylor_attention", q, k, v) == "pallas"
    assert KERNEL in jax.jit(ops.taylor_attention).lower(q, k, v).as_text()
    state, cache = ops.init_taylor_state(2, 4, 16, 64), ops.init_kv_cache(2, 8, 4, 64, 64, jnp.bfloat16)
    assert KERNEL in jax.jit(ops.taylor_step).lower(q[:, 0], k[:, 0], v[:, 0], state).as_text()
    assert KERNEL in jax.jit(ops.window_step).lower(v[:, 0], v[:, 0], v[:, 0], cache).as_text()


@pytest.mark.gpu
def test_decoding_overwrites_the_state():
    q, k, v = (x[:, 0] for x in example(1))
    state, cache = ops.init_taylor_state(2, 4, 16, 64), ops.init_kv_cache(2, 8, 4, 64, 64, jnp.bfloat16)
    for step, tokens, before in ((ops.taylor_step, (q, k, v), state), (ops.window_step, (v, v, v), cache)):
        large = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(before) if x.ndim > 2}
        _, after = jax.jit(step, donate_argnums=3)(*tokens, before)
        assert {x.unsafe_buffer_pointer() for x in jax.tree.leaves(after) if x.ndim > 2} == large


@pytest.mark.gpu
def test_addresses_beyond_32_bits():
    assert_passes(Addresses())
