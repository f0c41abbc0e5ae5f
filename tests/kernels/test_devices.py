"""No GPU gets a kernel that does not fit it: what None picks, against the compiler's own numbers."""

import functools
import importlib.util
import re

import jax
import jax.numpy as jnp
import pytest

import pallas_kernels
from based_jax import ops
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases import taylor_attention as attention_cases
from benchmarks.gpu.static import topology
from pallas_kernels import devices, lowering_for, offline
from pallas_kernels.taylor_attention.function import Variant
from pallas_kernels.taylor_attention.layout import symmetric_size
from tests.kernels.toy import Device

KINDS = (
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA L40S",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H200",
    "NVIDIA B200",
)
OTHERS = ("Tesla V100-SXM2-16GB", "AMD Instinct MI300X", "gfx942", "NVIDIA GPU of tomorrow", "cpu")
KERNEL = "__gpu$xla.gpu.triton"
FAMILIES = ("NVIDIA A100", "NVIDIA GeForce RTX 4090", "NVIDIA H200", "NVIDIA B200")
"""A GPU of each."""

needs_compiler = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, topology.PLUGINS)) or jax.__version_info__ < (0, 11),
    reason="needs jax 0.11 or newer with its CUDA plugin (extra `inspect`)",
)

QKV = ("taylor_attention", "taylor_step", "window_step")
"""Ops of queries, keys and values with a folder of kernels of their name."""


def _tokens(key_size: int, dtype: str, *lead: int) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((*lead, size), jnp.dtype(dtype)) for size in (key_size, key_size, 64)]


def _call(op: str, key_size: int = 16, dtype: str = "bfloat16", rows: int = 2) -> list[jax.ShapeDtypeStruct]:
    """q, k, v as an op takes them."""
    return _tokens(key_size, dtype, rows, *((300, 2) if op == "taylor_attention" else (2,)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", QKV)
def test_none_picks_the_kernels_on_gpus_that_they_fit(kind, op):
    with lowering_for(kind):
        assert ops.implementation_for(op) == "pallas"
        for key_size in (8, 16, 24, 32):
            assert ops.implementation_for(op, *_call(op, key_size)) == "pallas"
            assert ops.implementation_for(op, *_call(op, key_size, "float32"), implementation="pallas")


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("op", QKV)
def test_none_picks_xla_on_other_gpus_and_a_name_is_refused(kind, op):
    arrays = _call(op)
    with lowering_for(kind):
        assert ops.implementation_for(op) == ops.implementation_for(op, *arrays) == "xla"
        expected = rf"implementation = 'pallas': .* capability 8.0 and newer, and this is {re.escape(kind)}"
        with pytest.raises(ValueError, match=expected):
            ops.implementation_for(op, *arrays, implementation="pallas")
    with lowering_for(kind), pytest.raises(ValueError, match=r"capability 8\.0 and newer"):
        jax.eval_shape(pallas_kernels.taylor_attention, *_call("taylor_attention"))


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1], OTHERS[0]])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_none_picks_the_kernels_for_short_windows(kind, dtype):
    """Of full attention, longer windows, patterns and few tokens "xla" is left where there is no cuDNN."""
    x = jax.ShapeDtypeStruct((2, 128, 4, 64), jnp.dtype(dtype))
    ids = jax.ShapeDtypeStruct((2, 128), "int32")

    def has_kernel(x, **options):
        attend = functools.partial(ops.softmax_attention, **options)
        return KERNEL in offline.lower(attend, x, x, x, device_kind=kind).as_text()

    fits = kind in KINDS
    assert has_kernel(x, left=63) == has_kernel(x, left=127) == fits
    packed = offline.lower(
        lambda x, ids: ops.softmax_attention(x, x, x, left=3, segment_ids=ids), x, ids, device_kind=kind
    )
    assert (KERNEL in packed.as_text()) == fits
    assert not has_kernel(x)
    assert not has_kernel(x, left=128 - 1, return_log_sum=True)
    assert not has_kernel(x, left=3, allowed=lambda i, j: i != j)
    assert not has_kernel(jax.ShapeDtypeStruct((2, 64, 4, 64), x.dtype), left=3)
    with pytest.raises(ValueError, match=r"'pallas': takes windows of at most 127 past keys \(left\)"):
        has_kernel(x, implementation="pallas")


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Device("NVIDIA A100-SXM4-80GB", "8.0"), 166_912),
        (Device("NVIDIA RTX 6000 Ada Generation", "8.9"), 101_376),
        (Device("NVIDIA H200", "9.0"), 232_448),
        (Device("NVIDIA GPU of tomorrow", "13.0"), devices.SMALLEST),
        (Device("cpu", "", platform="cpu"), 232_448),
        (Device("Tesla V100-SXM2-16GB", "7.0"), "this is Tesla V100-SXM2-16GB (7.0)"),
        (Device("NVIDIA GeForce RTX 2080 Ti", "7.5"), "this is NVIDIA GeForce RTX 2080 Ti (7.5)"),
        (Device("AMD Instinct MI300X", "gfx942"), "this is AMD Instinct MI300X (gfx942)"),
        (Device("A100-SXM4-40GB", "8.0"), "begins with 'NVIDIA', and this is 'A100-SXM4-40GB'"),
    ],
)
def test_a_gpu_that_is_there_says_its_shared_memory_or_why_it_is_unfit(monkeypatch, device, expected):
    monkeypatch.setattr(jax, "local_devices", lambda **_: [device])
    if isinstance(expected, str):
        assert expected in (devices.cannot_run() or "")
        with pallas_kernels.interpreted():
            assert devices.cannot_run() is None
        return
    assert devices.cannot_run() is None
    assert devices.shared_memory() == expected
    with lowering_for("NVIDIA L40S"):
        assert devices.shared_memory() == 101_376


def test_unknown_virtual_gpus_are_refused():
    with pytest.raises(ValueError, match="kind = 'NVIDIA X': expected the name of a GPU"):
        topology.target_config("NVIDIA X")


def _attention_and_gradient(q, k, v):
    y, pull = jax.vjp(functools.partial(pallas_kernels.taylor_attention, block=128), q, k, v)
    return y, pull(y)


def _call_of(op: str, rows: int) -> tuple:
    """A function and arrays of so many rows."""
    q, k, v = _call(op, rows=rows)
    if op == "taylor_attention":
        return _attention_and_gradient, (q, k, v)
    if op == "taylor_step":
        states = [(rows, 2, symmetric_size(16), 64), (rows, 2, symmetric_size(16))]
        return pallas_kernels.taylor_step, (q, k, v, *(jax.ShapeDtypeStruct(x, "float32") for x in states))
    rings = [jax.ShapeDtypeStruct((rows, 8, 2, size), q.dtype) for size in (16, 64)]
    return pallas_kernels.window_step, (q, k, v, *rings, jax.ShapeDtypeStruct((rows,), "int32"))


@pytest.mark.release
@pytest.mark.parametrize("op", QKV)
def test_the_grid_holds_any_number_of_rows(op):
    """CUDA takes 65,535 programs along the second and third axis; vmapped axes become rows."""
    function, arrays = _call_of(op, rows=1000)
    stacked = [jax.ShapeDtypeStruct((80, *x.shape), x.dtype) for x in arrays]
    text = offline.lower(jax.vmap(function), *stacked).as_text()
    grids = re.findall(r"grid_x = (\d+) : i32, grid_y = (\d+) : i32, grid_z = (\d+) : i32", text)
    assert grids
    for x, y, z in grids:
        assert int(x) >= 80_000 * 2
        assert max(int(y), int(z)) <= 65_535


def test_blocks_that_the_grid_does_not_hold_are_refused():
    arrays = _tokens(16, "bfloat16", 1, 10_000_000, 1)
    with pytest.raises(ValueError, match="block = 128: expected at least 153 tokens, which make"):
        jax.eval_shape(functools.partial(pallas_kernels.taylor_attention, block=128), *arrays)


@pytest.mark.slow
def test_blackwells_segments_are_those_of_other_gpus(monkeypatch):
    """Its kernels forget a state by a product, not by a selection."""
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 130, 1, n)) for i, n in enumerate((8, 8, 16)))
    starts = jnp.where(jnp.arange(130) < 50, 0, 50)[None]
    with pallas_kernels.interpreted():
        expected = pallas_kernels.taylor_attention(q, k, v, starts=starts)
        monkeypatch.setattr(devices, "current", lambda: devices.Gpu("NVIDIA B200", "10.0"))
        assert devices.shared_memory() == 232_448
        assert jnp.array_equal(pallas_kernels.taylor_attention(q, k, v, starts=starts), expected)


@needs_compiler
def test_the_compiler_refuses_what_the_table_withholds():
    """K = 24 with all tables in shared memory fits an A100, and no RTX 4090."""
    topology.use_cpu()
    case = attention_cases.case("dq", 24, 64, "bfloat16")
    tables = functools.partial(case.function, variant=Variant(chunk=32, tile=64, value_tile=16, warps=4))
    topology.compile_program(tables, *topology.placed(case.arguments, "NVIDIA A100"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Shared memory size limit exceeded"):
        topology.compile_program(tables, *topology.placed(case.arguments, "NVIDIA GeForce RTX 4090"))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_case_of_the_catalogue_fits(kind):
    """The compiler refuses what needs more shared memory than a program may have."""
    topology.use_cpu()
    with lowering_for(kind):
        assert devices.shared_memory() == devices.family(kind).shared
        cases = [*catalog.cases(), *catalog.at_highest_precision()]
    for case in cases:
        topology.compile_program(case.function, *topology.placed(case.arguments, kind))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("key_size", [16, 24, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_what_none_picks_compiles(kind, key_size):
    """The whole call and its gradient, down to machine code, with the GPU's own limits."""
    topology.use_cpu()
    arrays = topology.placed(_call("taylor_attention", key_size), kind)
    with lowering_for(kind):
        assert ops.implementation_for("taylor_attention", *arrays) == "pallas"
        assert topology.compile_program(_attention_and_gradient, *arrays)
