"""The jax-triton twin of `window_step`: compiled, and as Pallas; test_triton.py has its numbers."""

import functools
from typing import Any

import jax
import pytest

from based_jax import ops
from benchmarks.gpu.static import triton_report
from pallas_kernels import Rotary, interpreted, offline, window_step
from pallas_kernels.window_step import Variant
from tests.kernels import test_window_step as window
from tests.kernels.test_triton import compiler, needs_compiler  # noqa: F401
from tests.tolerances import FLOAT32, assert_close


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
