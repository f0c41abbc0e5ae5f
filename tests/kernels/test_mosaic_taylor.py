"""The Mosaic kernel of Taylor attention: interpreted against float64, lowered for an H200, chosen by name.

The interpreter looks for races and for accesses out of bounds, and begins with NaN in all memory.
"""

import contextlib
import functools
import importlib.util

import jax
import numpy as np
import pytest

from based_jax import ops
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.sections import checks, reference
from benchmarks.gpu.static import resources, topology
from pallas_kernels import interpreted, lowering_for, offline, taylor_attention, tuning
from pallas_kernels.taylor_attention import mosaic_support
from tests.arrays import array
from tests.kernels import sharded
from tests.kernels.toy import Device
from tests.subprocesses import run_python
from tests.tolerances import BFLOAT16, assert_close

too_old = mosaic_support.cannot_run() or ""
needs_mosaic = pytest.mark.skipif("needs jax" in too_old, reason=too_old)

needs_compiler = pytest.mark.skipif(
    (bool(too_old) and "needs jax" in too_old) or not any(map(importlib.util.find_spec, topology.PLUGINS)),
    reason="needs jax 0.11 or newer with its CUDA plugin",
)

KERNEL = "mosaic_gpu_v2"


attend = functools.partial(taylor_attention, backend="mosaic")


def check_packed() -> None:
    """Two blocks of a chunk, values that do not fill their second part, segments, padding, states."""
    sizes = {"length": 200, "value_size": 80, "block": 128, "batch": 1, "heads": 1}
    with interpreted():
        program = checks.Attention(packed=True, implementation="mosaic", **sizes).program()
        run = program.lowered.compile()
        results = []

        def once(*arrays):
            """Interpreting takes seconds: the second run is the first."""
            results[:] = results or [run(*arrays)]
            return results[0]

        assert program.judge(once).problem == ""


def check_vmapped() -> None:
    """A row per call and a block of two chunks."""
    rng = np.random.default_rng(0)
    arrays = [array(rng.normal(size=(2, 1, 130, 1, size)), "bfloat16") for size in (16, 16, 64, 64)]

    def results(attend, q, k, v, dy):
        y, pull_back = jax.vjp(attend, q, k, v)
        return y, pull_back(dy)

    with interpreted():
        got = jax.jit(jax.vmap(functools.partial(results, attend)))(*arrays)
    with jax.enable_x64(True):
        exact = (np.asarray(x[:, 0], np.float64) for x in arrays)
        want = jax.jit(functools.partial(results, reference.taylor_attention))(*exact)
    assert_close(jax.tree.map(lambda x: x[:, 0], got), want, BFLOAT16)


@pytest.mark.slow
@needs_mosaic
@pytest.mark.parametrize("check", [check_vmapped, check_packed])
def test_interpreted(check):
    # With fewer devices, and so threads, the interpreter may wait for itself on a small machine.
    code = f"from tests.kernels import test_mosaic_taylor as test; test.{check.__name__}()"
    assert "RACE DETECTED" not in run_python(code, devices=8)


SHAPES = [
    # One block per row and head; the three passes, packed, with states and a part that values do not fill.
    (8, 16, 2048, 64, False),
    pytest.param(1, 16, 8192, 112, True, marks=pytest.mark.slow),
]


@pytest.mark.release
@needs_mosaic
@pytest.mark.parametrize(("batch", "heads", "length", "value_size", "packed"), SHAPES)
def test_lowered_for_an_h200(batch, heads, length, value_size, packed):
    keys, values = (
        jax.ShapeDtypeStruct((batch, length, heads, size), "bfloat16") for size in (16, value_size)
    )
    rows = [jax.ShapeDtypeStruct((batch, length), "int32"), jax.ShapeDtypeStruct((batch,), "int32")]

    def run(q, k, v, starts=None, counts=None):
        y, pull = jax.vjp(functools.partial(attend, starts=starts, counts=counts), q, k, v)
        return y, pull(y)

    text = offline.lower(run, keys, keys, values, *(rows if packed else [])).as_text()
    # Outputs, dq, dk with dv; for several blocks the sums before the first two, and after the third.
    assert text.count(f"@{KERNEL}(") == (3 if batch * heads >= 128 else 6)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("case", catalog.on_hopper(), ids=lambda case: case.name)
def test_compiled_without_spilled_registers(case):
    found = {kernel.kernel: kernel for kernel in resources.of_mosaic(case.function, *case.arguments)}
    names = ("key_sums", "query_sums", "outputs", "dq", "dkv")
    assert found.keys() == {f"taylor_{name}_mosaic" for name in names}
    for name, kernel in found.items():
        # Packed kernels reload addresses and indices in the loop; no other one may: its shared memory leaves
        # little of the L1 cache (the folder's README). Bytes of jax 0.12.0.1 with CUDA 13.5's assembler.
        limit = 64 if "packed" in case.name and "sums" not in name else 0
        assert max(kernel.spill_stores, kernel.spill_loads) <= limit, name
        assert kernel.shared <= 232_448
        assert kernel.wgmma > 0 == kernel.mma


@needs_compiler
def test_a_program_without_it_has_no_report():
    with pytest.raises(LookupError, match="no PTX"):
        resources.of_mosaic(lambda x: x + 1, jax.ShapeDtypeStruct((4,), "float32"))


@needs_compiler
@pytest.mark.parametrize("call", sharded.hopper_calls(), ids=lambda call: call.name)
def test_sharded_over_eight_gpus_nothing_moves(call):
    mesh = sharded.mesh(topology.topology(8))
    for function in (call.function, _mapped(call, mesh)):
        program = topology.compile_program(function, *call.sharded(mesh))
        assert sharded.collectives(program.as_text() or "") == []
        for result in jax.tree.leaves(program.output_shardings):
            assert "data" in result.spec
            assert "tensor" in result.spec


def _mapped(call, mesh):
    """The call under `shard_map`."""
    rows = [x.sharding.spec for x in call.sharded(mesh)]
    options = {"mesh": mesh, "in_specs": tuple(rows), "out_specs": tuple(rows[:3]), "check_vma": False}
    return jax.shard_map(call.function, **options)


def _arrays(key_size=16, dtype="bfloat16", rows=1):
    return [jax.ShapeDtypeStruct((rows, 2, 3, size), dtype) for size in (key_size, key_size, 64)]


@needs_mosaic
@pytest.mark.parametrize(
    ("arrays", "context", "message"),
    [
        (_arrays(8), interpreted, "q has 8 channels; the Mosaic kernel takes 16"),
        (
            _arrays(dtype="float32"),
            interpreted,
            "q, k, v have dtype float32; the Mosaic kernel takes bfloat16",
        ),
        (
            _arrays(),
            contextlib.nullcontext,
            r"runs on Hopper GPUs only \(compute capability 9.0\), and this is no GPU",
        ),
    ],
)
def test_what_it_cannot_do_is_said(arrays, context, message):
    with context():
        with pytest.raises(ValueError, match=f"^backend = 'mosaic': {message}"):
            attend(*arrays)
        beginning = f"^implementation = 'mosaic': (runs on GPUs|{message})"
        with pytest.raises(ValueError, match=beginning):
            ops.implementation_for("taylor_attention", *arrays, implementation="mosaic")


@pytest.mark.parametrize("release", ["0.10.2", "0.9"])
def test_old_releases_of_jax_are_refused(monkeypatch, release):
    monkeypatch.setattr(jax, "__version__", release)
    with (
        interpreted(),
        pytest.raises(ValueError, match=f"'mosaic': needs jax 0.11 or newer; this is jax {release}"),
    ):
        ops.implementation_for("taylor_attention", *_arrays(), implementation="mosaic")


def test_other_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.12.0")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device("NVIDIA A100", "8.0")])
    assert "this is NVIDIA A100 (8.0)" in (mosaic_support.cannot_run() or "")
    monkeypatch.setattr(jax, "local_devices", lambda: [Device("NVIDIA H200", "9.0")])
    assert mosaic_support.cannot_run() is None


@needs_mosaic
def test_by_itself_it_is_chosen_where_it_was_measured_to_be_faster(monkeypatch):
    """With a made table; tests/kernels/test_defaults.py has the measured one."""
    choose = functools.partial(ops.implementation_for, "taylor_attention")
    rows = [{"device": "9.0", "when": {"rows_and_heads": [1, 3], "length": [2, 9]}, "backend": "mosaic"}]
    with lowering_for():
        assert choose(*_arrays()) == "pallas"
        monkeypatch.setattr(tuning, "backends", lambda op: rows)
        assert choose(*_arrays()) == "mosaic"
        assert choose(*_arrays(rows=2)) == "pallas"
        assert choose(*_arrays(dtype="float32")) == choose(*_arrays(8)) == choose() == "pallas"
        rows[0]["device"] = "10.0"
        assert choose(*_arrays()) == "pallas"
    assert choose(*_arrays()) == "xla"
