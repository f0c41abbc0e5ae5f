"""Fused Taylor attention in the interpreter: values, states and gradients against float64.

Lengths around the chunk of 64 tokens and several blocks, so that every kernel runs, every key size's tiles,
value sizes that fill a tile and that do not. Elements that no program writes are NaN in the interpreter.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import pallas_kernels
from based_jax import ops
from pallas_kernels import tuning
from pallas_kernels.launch import interpreted
from pallas_kernels.taylor_attention import Variant, function, layout
from pallas_kernels.taylor_attention.layout import Layout
from tests.arrays import array
from tests.marks import slow_but
from tests.ops import oracles
from tests.ops.linear_attention_cases import (
    Case,
    cast,
    inputs,
    oracle,
    oracle_parts,
    parts,
    place,
    values_and_gradients,
)
from tests.tolerances import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT32_GRADIENT,
    FLOAT32_STATE,
    FLOAT64,
    assert_close,
)

# One token; ends of chunks and blocks; one block (state handed straight to it) and several.
CASES = [
    Case("taylor", (1, 1, 1, 1, 1), 1),
    Case("taylor", (2, 200, 1, 5, 3), 1, options="segments padded state"),
]
LONG_CASES = [  # compile for 6 to 20 s each; those above take the same paths with other sizes
    Case("taylor", (2, 130, 1, 16, 64), 1, options="segments padded"),
    Case("taylor", (1, 150, 1, 24, 48), 1, options="segments state"),
    Case("taylor", (1, 300, 2, 8, 32), 1, options="state"),
    Case("taylor", (2, 1, 2, 16, 64), 1, options="segments state"),
    Case("taylor", (1, 129, 1, 32, 40), 1, options="padded state"),
    Case("taylor", (1, 70, 1, 16, 112), 1, options="segments padded state"),
]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Blocks of the longest chunk, 128 tokens: short texts then have several."""
    monkeypatch.setattr(function, "SHORTEST_BLOCK", 64)


@pytest.fixture(autouse=True)
def two_tiles(monkeypatch):
    """Two tiles of products besides the mixed one: compiling takes time per tile, and K = 32 has eight."""
    choose = tuning.choose

    def wide(op, kind, *, key_size, **facts):
        variant = choose(op, kind, key_size=key_size, **facts)
        products = next(products for largest, products, _ in layout.ROWS if key_size <= largest)
        return replace(variant, tile=max(variant.tile, products // 2))

    monkeypatch.setattr(function.tuning, "choose", wide)


def on_kernels(*arguments, **options):
    with interpreted():
        return values_and_gradients(*arguments, **options, implementation="pallas")


@pytest.mark.parametrize("case", slow_but(CASES, [*CASES, *LONG_CASES], core=CASES[1:]), ids=str)
def test_values_states_and_gradients(case):
    """Against the recurrence, and the gradients of the quadratic form, both in float64."""

    @settings(max_examples=4)
    @given(inputs(case))
    def law(drawn):
        y, state = oracle(case, drawn)
        with_segments = bool({"state", "segments"} & set(case.options.split()))
        state = oracle_parts(state, with_segments)
        with jax.enable_x64(True):
            arguments = cast(drawn.arrays, jnp.float64), place(drawn.placement), place(drawn.weights)
            _, exact = values_and_gradients(*arguments, case=case, implementation="reference")
        arguments = cast(drawn.arrays, jnp.float32), place(drawn.placement), cast(drawn.weights, jnp.float32)
        outputs, gradients = on_kernels(*arguments, case=case)
        assert_close(outputs[0], y, FLOAT32, "y")
        assert_close(parts(outputs[1]), state, FLOAT32_STATE, "state")
        assert_close(gradients, exact, FLOAT32_GRADIENT, "gradient", magnitude=0.1)

    law()


def exact(*arrays):
    return [np.asarray(x, np.float64) for x in arrays]


def reference(q, k, v):
    """y in float64 from arrays of any dtype."""
    phi_q, phi_k = map(oracles.symmetric_taylor_features, exact(q, k))
    return oracles.linear_attention(phi_q, phi_k, *exact(v))[0]


def drawn(seed, shape=(1, 150, 2, 16), value_size=64):
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, *shape))
    return q, k, rng.normal(size=(*shape[:-1], value_size))


@functools.partial(jax.jit, static_argnames=("dtype",))
def _attend(q, k, v, *, dtype):
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    return q, k, v, pallas_kernels.taylor_attention(q, k, v)


def attend(q, k, v, dtype="float32"):
    """Inputs as rounded, and the kernels' y."""
    with interpreted():
        return _attend(*(jnp.asarray(x, jnp.float32) for x in (q, k, v)), dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("bfloat16", BFLOAT16), pytest.param("float16", FLOAT16, marks=pytest.mark.release)],
)
def test_half_precision(dtype, tolerance):
    *rounded, y = attend(*drawn(0), dtype=dtype)
    assert y.dtype == dtype
    assert_close(y, reference(*rounded), tolerance)


@pytest.mark.slow
def test_gradients_in_half_precision():
    """1 / sqrt(K) is a power of two for K = 16 only: elsewhere queries must not be rounded a second time.

    The first query's gradient is 0 but for rounding, which the few features of K = 8 do not average out.
    """
    q, k, v = (jnp.asarray(x, "bfloat16") for x in drawn(1, (1, 150, 2, 8)))
    weights = np.random.default_rng(2).normal(size=v.shape)

    def loss(attention, q, k, v):
        return (attention(q, k, v).astype(jnp.float32) * weights).sum()

    with interpreted():
        got = jax.jit(jax.grad(functools.partial(loss, pallas_kernels.taylor_attention), (0, 1, 2)))(q, k, v)
    assert {x.dtype for x in got} == {jnp.dtype("bfloat16")}
    plain = functools.partial(ops.taylor_attention, implementation="reference")
    with jax.enable_x64(True):
        want = jax.jit(jax.grad(lambda *x: (plain(*x) * weights).sum(), (0, 1, 2)))(*exact(q, k, v))
    assert_close(got, want, 2 * BFLOAT16)


@pytest.mark.parametrize(
    ("change", "tolerance"),
    [
        (lambda q, k, v: (q * 0, k * 0, v), FLOAT32),
        (lambda q, k, v: (q, k * 0 + k[:, :1], v), FLOAT32),
        (lambda q, k, v: (q, k, v * 0), FLOAT32),
        # s near 1e4, s^2 / 2 near 1e8: sums of features lose what the largest of them round away.
        (lambda q, k, v: (30 * abs(q), 30 * abs(k), v), FLOAT32),
        (lambda q, k, v: (1e3 * q[:, :, :, :1] + 0 * q, 1e3 + 0 * k, v), FLOAT32),
        (lambda q, k, v: (q * 1e-4, k * 1e-4, v + 1e3), FLOAT32),
    ],
    ids=["zeros", "equal keys", "no values", "large", "huge", "tiny q.k, large values"],
)
def test_extreme_values(change, tolerance):
    arrays = change(*drawn(3))
    *rounded, y = attend(*arrays)
    assert_close(y, reference(*rounded), tolerance)


@pytest.mark.slow
def test_many_short_blocks_give_the_same():
    q, k, v = (array(x, "float32") for x in drawn(4, (1, 333, 1, 16)))
    with interpreted():
        run = jax.jit(functools.partial(pallas_kernels.taylor_attention, block=1, return_state=True))
        y, sums = run(q, k, v)
    phi_q, phi_k = map(oracles.symmetric_taylor_features, exact(q, k))
    expected, state = oracles.linear_attention(phi_q, phi_k, *exact(v))
    assert_close(y, expected, FLOAT32)
    assert_close(sums, (state.kv, state.k), FLOAT32_STATE)


@pytest.mark.slow
def test_other_variants_under_vmap_give_the_same():
    """Chunk, tile, value tile: unlike the defaults, and unlike each other; keys that the rows share."""
    q, (k, _), v = drawn(5, (2, 1, 200, 1, 16))
    kernels = ("key_sums", "query_sums", "outputs", "dq", "dk", "dv")

    def gradients(attention, q, k, v):
        program = jax.value_and_grad(lambda *x: (attention(*x) ** 2).sum(), (0, 1, 2))
        return jax.jit(jax.vmap(program, (0, None, 0)))(q, k, v)

    wide, small = Variant(128, 128, 64, warps=8), Variant(16, 16, 16, warps=4)
    # Kernels of one call need not agree on anything but the length of blocks.
    mixed = {kernel: (wide, small)[i % 2] for i, kernel in enumerate(kernels)}
    with interpreted():
        attention = functools.partial(pallas_kernels.taylor_attention, variants=mixed)
        got = gradients(attention, *(array(x, "float32") for x in (q, k, v)))
    with jax.enable_x64(True):
        want = gradients(functools.partial(ops.taylor_attention, implementation="reference"), q, k, v)
    assert_close(got, want, FLOAT32_GRADIENT)


@pytest.mark.release
@pytest.mark.parametrize("key_size", [1, 8, 9, 16, 24, 32])
def test_layout(key_size):
    """The tables build each symmetric feature once, weighted for q . k, and states go there and back."""
    layout = Layout(key_size, 32)
    (one, two, weighted), size = layout.tables, ops.symmetric_taylor_size(key_size)
    linear = list(range(layout.first_linear, layout.constant_column))
    assert list(layout.linear_columns) == linear, "the kernels compare numbers of features with both ends"
    rng = np.random.default_rng(key_size)
    q, k = rng.normal(size=(2, 5, layout.padded_key_size)) * (np.arange(layout.padded_key_size) < key_size)

    def phi(x, two):
        r, t = np.zeros((2, layout.size))
        end = layout.size - layout.last + layout.constant_column
        r[end], t[end - key_size : end + 1] = 1, 1
        return (x @ one + r) * (x @ two + t)

    s = (q * k).sum(-1) / np.sqrt(key_size)
    phi_q, phi_k = phi(q / np.sqrt(key_size), weighted), phi(k, two)
    assert_close((phi_q * phi_k).sum(-1), 1 + s + s**2 / 2, FLOAT64)
    assert np.count_nonzero(np.abs(phi_k).sum(0)) == size <= layout.size

    canonical = oracles.symmetric_taylor_features(k[None, :, None, :key_size])
    v = rng.normal(size=(1, 5, 1, 3))
    kv, z = np.einsum("bnhf,bnhv->bhfv", canonical, v), canonical.sum(1)
    with jax.enable_x64(True):
        rows, moments = jax.jit(layout.state_to_kernel)(jnp.asarray(kv), jnp.asarray(z))
        assert_close(rows[0, 0], phi_k.T @ v[0, :, 0], 1e-6, "rows")  # the scales are float32
        assert_close(moments[0, 0, -1, 0], 5.0, FLOAT64, "count")
        assert_close(jax.jit(layout.state_from_kernel)(rows, moments), (kv, z), 1e-6, "back")


def test_the_compiler_does_not_convert_an_empty_state_itself():
    """It would evaluate, slowly, what follows of constants: then the factors of the features are gone."""
    layout = Layout(16, 1)
    program = jax.jit(lambda: layout.state_to_kernel(jnp.zeros((1, 2, 153, 8)), jnp.zeros((1, 2, 153))))
    assert "f32[153]" in program.lower().compile().as_text()


@pytest.mark.slow
def test_the_length_of_blocks_fills_the_chip_and_no_more():
    for programs, length, expected in (
        (256, 32768, 32768),  # rows and heads fill it
        (16, 32768, 2048),  # one wave of 256
        (1, 1000, 64),
        (64, 8192, 2048),
    ):
        assert function.block_length(programs, length) == expected
