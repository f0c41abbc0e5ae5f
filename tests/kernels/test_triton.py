"""The jax-triton twins: interpreted against float64, compiled for an H200, equal to Pallas on a GPU."""

import contextlib
import functools
import importlib.util
import sys
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import interpreted, offline, taylor_attention, taylor_step, topology, triton_report
from pallas_kernels.taylor_attention.layout import symmetric_size
from tests.ops import oracles
from tests.subprocesses import run_python
from tests.tolerances import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT32_GRADIENT,
    FLOAT32_STATE,
    assert_close,
)

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")


def _has(*packages: str) -> bool:
    return all(map(importlib.util.find_spec, packages))


needs_interpreter = pytest.mark.skipif(not _has("triton", "torch"), reason="needs triton and torch")
needs_compiler = pytest.mark.skipif(
    not (_has("triton", "jax_triton") and any(map(importlib.util.find_spec, topology.PLUGINS))),
    reason="needs triton, jax_triton and jax's CUDA plugin",
)

INTERPRETED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from tests.kernels.test_triton import {check} as check
from tests.kernels.triton_interpreter import interpreted_triton
with interpreted_triton():
    check()
"""


class Attention(NamedTuple):
    """A call of `taylor_attention`."""

    batch: int
    length: int
    heads: int
    key_size: int
    value_size: int
    options: str = ""
    dtype: str = "float32"
    block: int = 64


# Ends of chunks and blocks, one block and several, every key size's tiles, value sizes that fill no tile.
ATTENTION = [
    Attention(1, 1, 1, 1, 1),
    Attention(2, 200, 2, 16, 64),
    Attention(2, 130, 1, 16, 48, "segments padded state"),
    Attention(2, 100, 1, 16, 112, "segments state", block=128),
    Attention(1, 150, 1, 8, 32, "state", block=1000),
    Attention(1, 70, 1, 24, 40, "padded"),
    Attention(1, 129, 1, 32, 16, "state"),
    Attention(1, 65, 1, 16, 64, dtype="float16"),
]

# B, H, K, V, dtype: a tail of rows, value sizes that are no powers of two.
STEPS = [
    (1, 1, 1, 1, "float32"),
    (2, 3, 16, 64, "float32"),
    (1, 2, 8, 112, "float16"),
    (2, 1, 32, 48, "float32"),
]


def _recurrence(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, oracles.Sums]:
    phi = oracles.symmetric_taylor_features
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    return oracles.linear_attention(phi(q), phi(k), v, **options)


def _sums(rng: np.random.Generator, case: Attention) -> oracles.Sums:
    """The state behind 5 tokens of segment 1."""
    keys = rng.normal(size=(case.batch, 5, case.heads, case.key_size))
    values = rng.normal(size=(case.batch, 5, case.heads, case.value_size))
    return _recurrence(keys, keys, values, segment_ids=np.ones((case.batch, 5), int))[1]


def _starts(ids: np.ndarray, has_state: bool) -> np.ndarray:
    """Index of the first token of each token's segment; -1 where it began before the call, in segment 1."""
    starts = np.array([np.searchsorted(row, row) for row in ids])
    return np.where((starts == 0) & (ids == 1), -1, starts) if has_state else starts


def check_attention() -> None:
    """y and the final state of every case."""
    for case in ATTENTION:
        rng = np.random.default_rng(0)
        options = case.options.split()
        size = (case.batch, case.length, case.heads)
        q, k, v = (
            rng.normal(size=(*size, n)).astype(case.dtype)
            for n in (case.key_size, case.key_size, case.value_size)
        )
        placed: dict[str, Any] = {}
        sums = _sums(rng, case) if "state" in options else None
        ids = np.sort(rng.integers(1, 4, size[:2]), axis=1) if "segments" in options else None
        counts = rng.integers(1, case.length, case.batch) if "padded" in options else None
        y, final = _recurrence(q, k, v, segment_ids=ids, counts=counts, state=sums)
        if sums is not None:
            placed["initial_state"] = (jnp.float32(sums.kv), jnp.float32(sums.k))
        if ids is not None:
            if counts is not None:  # padding continues the last segment
                last = np.take_along_axis(ids, counts[:, None] - 1, axis=1)
                ids = np.where(np.arange(case.length) < counts[:, None], ids, last)
            placed["starts"] = jnp.asarray(_starts(ids, sums is not None))
        if counts is not None:
            placed["counts"] = jnp.asarray(counts)
        got, state = taylor_attention(
            *map(jnp.asarray, (q, k, v)), return_state=True, block=case.block, backend="triton", **placed
        )
        assert got.dtype == case.dtype
        assert_close(got, y, FLOAT32 if case.dtype == "float32" else FLOAT16, f"{case}")
        assert_close(state, (final.kv, final.k), FLOAT32_STATE, f"{case}")


def check_transformations() -> None:
    """Under `jit` and `vmap`, and the gradient: the Pallas kernels compute it from what the twin saved."""
    rng = np.random.default_rng(1)
    q, k = jnp.asarray(rng.normal(size=(2, 3, 1, 80, 1, 16)), jnp.float32)
    v = jnp.asarray(rng.normal(size=(3, 1, 80, 1, 32)), jnp.float32)
    attend = functools.partial(taylor_attention, block=64)
    with interpreted():
        expected = jax.vmap(attend)(q, k, v)
        gradients = jax.vjp(attend, q[0], k[0], v[0])[1](v[0])
    twin = functools.partial(attend, backend="triton")
    assert_close(jax.jit(jax.vmap(twin))(q, k, v), expected, FLOAT32)
    pull = jax.vjp(twin, q[0], k[0], v[0])[1]
    with interpreted():
        assert_close(pull(v[0]), gradients, FLOAT32_GRADIENT)


def check_step() -> None:
    """Tokens in sequence from an empty state."""
    for case in STEPS:
        batch, heads, key_size, value_size, dtype = case
        rng = np.random.default_rng(0)
        q, k, v = (
            rng.normal(size=(batch, 4, heads, n)).astype(dtype) for n in (key_size, key_size, value_size)
        )
        y, sums = _recurrence(q, k, v)
        kv = jnp.zeros((batch, heads, symmetric_size(key_size), value_size))
        z = jnp.zeros(kv.shape[:3])
        for t in range(4):
            token = [jnp.asarray(x[:, t]) for x in (q, k, v)]
            got, kv, z = taylor_step(token[0], token[1], token[2], kv, z, backend="triton")
            assert_close(got, y[:, t], FLOAT32 if dtype == "float32" else FLOAT16, f"{case}")
        assert_close((kv, z), (sums.kv, sums.k), FLOAT32_STATE, f"{case}")


@needs_interpreter
@pytest.mark.parametrize("check", ["check_attention", "check_transformations", "check_step"])
def test_interpreted_against_float64(check):
    run_python(INTERPRETED.format(check=check))


def _attention_arguments(key_size=16, value_size=64, dtype="bfloat16", length=8192) -> list[Any]:
    sizes = (key_size, key_size, value_size)
    return [jax.ShapeDtypeStruct((4, length, 16, size), dtype) for size in sizes]


def _packed(q, k, v):
    starts, counts = jnp.zeros(q.shape[:2], jnp.int32), jnp.full(q.shape[:1], q.shape[1], jnp.int32)
    return attend(q, k, v, starts=starts, counts=counts, return_state=True)


def _step_arguments(key_size=16, value_size=64, dtype="bfloat16", state="float32") -> list[Any]:
    shapes = [(key_size,), (key_size,), (value_size,)]
    sums = [(symmetric_size(key_size), value_size), (symmetric_size(key_size),)]
    return [
        *(jax.ShapeDtypeStruct((128, 16, *shape), dtype) for shape in shapes),
        *(jax.ShapeDtypeStruct((128, 16, *shape), state) for shape in sums),
    ]


attend = functools.partial(taylor_attention, backend="triton")
step = functools.partial(taylor_step, backend="triton")


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """jax_triton turns Triton's cache off for the whole process when it is imported."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@needs_compiler
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("key_size", "value_size", "dtype"),
    [(8, 64, "bfloat16"), (16, 64, "bfloat16"), (16, 112, "bfloat16"), (16, 64, "float32"),
     (24, 64, "bfloat16"), (32, 64, "bfloat16"), (16, 64, "float16")],
)  # fmt: skip
def test_attention_is_compiled_for_tensor_cores(key_size, value_size, dtype):
    found = triton_report.report(attend, *_attention_arguments(key_size, value_size, dtype))
    names = [kernel.kernel for kernel in found]
    assert names == ["taylor_key_sums", "taylor_scan", "taylor_scan", "taylor_outputs"]
    for kernel in (found[0], found[-1]):
        assert kernel.wgmma + kernel.mma > 0
        assert kernel.shared <= 232448
    if (key_size, dtype) == (16, "bfloat16"):  # two programs per multiprocessor, next to no spilled registers
        assert min(kernel.wgmma for kernel in (found[0], found[-1])) > 0
        assert [kernel.blocks_per_sm for kernel in (found[0], found[-1])] == [2, 2]
        assert found[0].spill_stores == 0
        assert found[-1].spill_stores <= 64


@needs_compiler
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("sizes", [{}, {"state": "bfloat16"}, {"value_size": 112}, {"key_size": 32}], ids=str)
def test_the_step_is_compiled_without_spills_and_in_place(sizes):
    arguments = _step_arguments(**sizes)
    (kernel,) = triton_report.report(step, *arguments)
    assert kernel.spill_stores == 0
    assert offline.lower(step, *arguments).as_text().count("output_operand_alias<") == 2


@needs_compiler
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (attend, _attention_arguments()),
        (_packed, _attention_arguments(length=1000)),
        (step, _step_arguments()),
    ],
    ids=["attention", "packed", "step"],
)
def test_whole_calls_pass_the_gpu_compiler(function, arguments):
    mesh = jax.sharding.Mesh(np.array(topology.topology()), ("device",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in arguments]
    with offline.lowering_for():
        text = topology.compile_program(function, *placed).as_text() or ""
    assert "triton_kernel_call" in text


def test_a_program_without_twins_has_no_report():
    with pytest.raises(LookupError, match="no triton_kernel_call"):
        triton_report.report(lambda x: x + 1, jax.ShapeDtypeStruct((4,), "float32"))


CALLS = [(taylor_attention, (1, 4, 1, 8), 3), (taylor_step, (1, 1, 8), 5)]


@pytest.mark.parametrize(("function", "shape", "count"), CALLS, ids=["attention", "step"])
@pytest.mark.parametrize("missing", ["triton", "jax_triton"])
def test_a_missing_package_is_named(monkeypatch, function, shape, count, missing):
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        ImportError, match=rf"backend = 'triton' needs {missing} \(pip install 'based-jax\[triton"
    ):
        function(*[jnp.ones(shape)] * count, backend="triton")


@pytest.mark.parametrize(("function", "shape", "count"), CALLS, ids=["attention", "step"])
@pytest.mark.parametrize(
    ("backend", "context", "message"),
    [
        ("cuda", contextlib.nullcontext, "backend = 'cuda': expected 'pallas' or 'triton'"),
        (
            "triton",
            interpreted,
            "backend = 'triton': expected 'pallas', the only one that `interpreted` runs",
        ),
    ],
)
def test_wrong_backends_are_named(function, shape, count, backend, context, message):
    with context(), pytest.raises(ValueError, match=message):
        function(*[jnp.ones(shape)] * count, backend=backend)


@pytest.mark.gpu
@pytest.mark.skipif(not _has("triton", "jax_triton"), reason="needs triton and jax_triton")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", FLOAT32_GRADIENT), ("bfloat16", BFLOAT16)])
def test_both_backends_compute_the_same(dtype, tolerance):
    rng = np.random.default_rng(0)
    q, k, v, dy = (jnp.asarray(rng.normal(size=(2, 1000, 4, n)), dtype) for n in (16, 16, 64, 64))
    options = {"precision": "highest", "starts": jnp.full((2, 1000), -1).at[:, 700:].set(700)}

    def run(backend):
        function = functools.partial(taylor_attention, backend=backend, **options)
        y, pull = jax.vjp(function, q, k, v)
        return y, pull(dy)

    compiled = jax.jit(run, static_argnums=0)
    assert_close(compiled("triton"), compiled("pallas"), tolerance)
    token = (q[:, 0], k[:, 0], v[:, 0], jnp.ones((2, 4, 153, 64)), jnp.ones((2, 4, 153)))
    assert_close(step(*token), taylor_step(*token), tolerance)
