"""The jax-triton twin of `window_step`: interpreted against float64, compiled, equal to Pallas on a GPU."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from benchmarks.gpu.static import triton_report
from pallas_kernels import Rotary, interpreted, offline, window_step
from pallas_kernels.window_step import Variant
from tests.kernels import test_window_step as window
from tests.kernels.test_triton import (
    INTERPRETED,
    compiler,  # noqa: F401
    needs_compiler,
    needs_interpreter,
)
from tests.subprocesses import run_python
from tests.tolerances import FLOAT32, FLOAT32_ANGLE, assert_close

# A ring of one slot, tiles and a rest, a rest alone; shared keys in one and several programs; odd widths.
SHAPES = [
    window.Shape(1, 1, 1, 1, 1, 1, "float32", None, Variant(slots=4)),
    window.Shape(3, 4, 2, 5, 16, 32, "float32", Rotary(16), Variant(slots=4, queries=1)),
    window.Shape(2, 3, 1, 7, 24, 12, "float32", Rotary(11, base=100.0, interleaved=True), Variant(slots=2)),
    window.Shape(2, 4, 1, 12, 8, 16, "float16", None, Variant(slots=16, queries=2)),
]


def check_steps() -> None:
    """Rows with empty and full rings, some after segments, past a wrap: outputs, and what the rings hold."""
    for shape in SHAPES:
        rng = np.random.default_rng(0)
        drawn = window.text(rng, "plain", shape, np.arange(shape.batch, dtype=np.int32) * shape.window, 0.5)
        before = rings = window.rings(drawn, shape)
        tokens = [window.steps_of(x, drawn, shape.dtype) for x in (drawn.q, drawn.k, drawn.v)]
        outputs = []
        for t in range(window.STEPS):
            y, *rings = window_step(
                *(jnp.asarray(x[t]) for x in tokens),
                *map(jnp.asarray, rings),
                jnp.asarray(drawn.seen + t),
                start=jnp.asarray(drawn.start),
                rotary=shape.rotary,
                variant=shape.variant,
                backend="triton",
            )
            outputs.append(np.asarray(y))
        tolerance = window.TOLERANCES[shape.dtype]
        if shape.rotary:
            tolerance += 10 * FLOAT32_ANGLE * (drawn.seen.max() + window.STEPS)
        assert_close(np.stack(outputs, axis=1), window.expected(drawn, shape), tolerance, f"{shape}")
        later = window.rings(drawn._replace(seen=drawn.seen + window.STEPS), shape)
        for got, want, old in zip(map(np.asarray, rings), later, before, strict=True):
            written = ~np.isnan(want)
            assert_close(np.where(written, got, 0), np.where(written, want, 0), tolerance, f"{shape}")
            # Slots that no step wrote are bit for bit what they were.
            age = (drawn.seen[:, None] + window.STEPS - 1 - np.arange(shape.window)) % shape.window
            untouched = (age >= window.STEPS)[..., None, None] & np.ones(got.shape, bool)
            assert np.array_equal(got[untouched], old[untouched], equal_nan=True)


def check_transformations() -> None:
    """Under `jit` and `vmap`, with other positions, and the gradient: as the Pallas kernel."""
    arrays, length, start = window.one_step()

    def step(*x: Any, backend: str) -> Any:
        *arrays, length, start = x
        return window_step(
            *arrays, length, start=start, position=length + 1, rotary=Rotary(6), backend=backend
        )

    twin, pallas = (functools.partial(step, backend=backend) for backend in ("triton", "pallas"))
    with interpreted():
        expected = jax.jit(pallas)(*arrays, length, start)
    mapped = jax.jit(jax.vmap(twin))(*(x[:, None] for x in (*arrays, length, start)))
    assert_close([x[:, 0] for x in mapped], [*expected], FLOAT32)
    y, pull = jax.vjp(lambda *x: twin(*x, length, start)[0], *arrays)
    with interpreted():
        assert_close(pull(y), jax.vjp(lambda *x: pallas(*x, length, start)[0], *arrays)[1](y), FLOAT32)


def check() -> None:
    """Both, in one process: most of its time goes to imports."""
    check_steps()
    check_transformations()


@needs_interpreter
def test_interpreted_against_float64():
    run_python(INTERPRETED.format(check="check").replace("tests.kernels.test_triton", __name__, 1))


def arguments(
    slots: int = 64, heads: int = 16, kv_heads: int = 16, size: int = 64, dtype: str = "bfloat16"
) -> list[Any]:
    token = [jax.ShapeDtypeStruct((128, n, size), dtype) for n in (heads, kv_heads, kv_heads)]
    ring = jax.ShapeDtypeStruct((128, slots, kv_heads, size), dtype)
    return [*token, ring, ring, jax.ShapeDtypeStruct((128,), "int32")]


SIZES = [
    {},
    {"dtype": "float32"},
    {"kv_heads": 4},
    {"slots": 129, "kv_heads": 1, "size": 128},
    {"size": 112},
    {"slots": 16, "size": 70},
    {"heads": 8, "kv_heads": 8, "size": 256},
]

OTHER_GPUS = ["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 4090", "NVIDIA B200"]


@needs_compiler
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("gpu", "sizes"),
    [*((offline.H200, sizes) for sizes in SIZES), *((gpu, {"kv_heads": 4}) for gpu in OTHER_GPUS)],
    ids=str,
)
def test_it_is_compiled_without_spills_and_in_place(gpu, sizes):
    step = functools.partial(window_step, rotary=Rotary(32), backend="triton")
    placed = arguments(**sizes)
    (kernel,) = triton_report.report(step, *placed, device_kind=gpu)
    assert kernel.spill_stores == 0
    lowered = offline.lower(step, *placed, device_kind=gpu)
    assert lowered.as_text().count("output_operand_alias<") == 2
    (compiled,) = triton_report.kernels(lowered)
    assert "cos.approx" not in compiled.ptx  # which is wrong for the angles of late positions


@needs_compiler
@pytest.mark.usefixtures("compiler")
def test_the_op_takes_its_name():
    k, v = (jax.ShapeDtypeStruct((2, 4, size), "float32") for size in (16, 24))
    cache = jax.eval_shape(lambda: ops.init_kv_cache(2, 6, 4, 16, 24))
    step = functools.partial(ops.window_step, rotary_dim=8, implementation="triton")
    assert "triton_kernel_call" in offline.lower(step, k, k, v, cache).as_text()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_backends_compute_the_same(dtype):
    pytest.importorskip("jax_triton")
    arrays, length, start = window.one_step()
    step = functools.partial(window_step, start=start, rotary=Rotary(6), variant=Variant(slots=2))
    given = (*(x.astype(dtype) for x in arrays), length)
    expected = jax.jit(step)(*given)
    assert_close(
        jax.jit(functools.partial(step, backend="triton"))(*given), expected, window.TOLERANCES[dtype]
    )
