"""The jax-triton twins: interpreted against float64, compiled for four GPUs, equal to Pallas on a GPU."""

import functools
import importlib.util
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import ops
from benchmarks.gpu.sections import checks
from benchmarks.gpu.static import topology
from pallas_kernels import Rotary, interpreted, offline, taylor_attention, taylor_step, window_step
from pallas_kernels.taylor_attention.layout import symmetric_size
from tests.floors import ROOT
from tests.kernels import test_window_step as window
from tests.subprocesses import run_python
from tests.tolerances import FLOAT32, assert_close

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
from tests.kernels import test_triton
from tests.kernels.triton_interpreter import interpreted_triton
with interpreted_triton():
    {call}
"""


# Steps: a tail of rows. Rings of one slot, tiles and a rest, a rest alone; shared keys in one and several
# programs; odd widths.
TWINS = {
    "step": [
        checks.Step(1, 1, "float32", batch=1, heads=1, implementation="triton"),
        checks.Step(16, 64, "float32", batch=2, implementation="triton"),
        checks.Step(8, 112, "float16", batch=1, heads=2, implementation="triton"),
        checks.Step(32, 48, "float32", batch=2, heads=1, implementation="triton"),
    ],
    "window": [
        checks.Window(1, 1, 1, 1, "float32", lengths=(0, 3), implementation="triton"),
        checks.Window(65, 4, 2, 16, "float32", Rotary(16), (0, 64, 131), "triton"),
        checks.Window(7, 3, 1, 24, "float32", Rotary(11, 100.0, interleaved=True), (3, 20), "triton"),
        checks.Window(40, 4, 1, 8, "float16", None, (0, 90), "triton"),
    ],
}


def check_twins(op: str) -> None:
    """Every result against float64, and two runs bit for bit."""
    for check in TWINS[op]:
        assert not (problem := check.run().problem), f"{check.name}: {problem}"


def check_window_transformations() -> None:
    """Under `jit` and `vmap`, with other positions, and the gradient: as the Pallas kernel."""
    arrays, length, start = window.one_step()

    def step(*x: Any, backend: str) -> Any:
        *arrays, length, start = x
        options = {"start": start, "position": length + 1, "rotary": Rotary(6), "backend": backend}
        return window_step(*arrays, length, **options)

    twin, pallas = (functools.partial(step, backend=backend) for backend in ("triton", "pallas"))
    with interpreted():
        expected = jax.jit(pallas)(*arrays, length, start)
    mapped = jax.jit(jax.vmap(twin))(*(x[:, None] for x in (*arrays, length, start)))
    assert_close([x[:, 0] for x in mapped], [*expected], FLOAT32)
    y, pull = jax.vjp(lambda *x: twin(*x, length, start)[0], *arrays)
    with interpreted():
        assert_close(pull(y), jax.vjp(lambda *x: pallas(*x, length, start)[0], *arrays)[1](y), FLOAT32)


def guides_kernel(folder: str | Path) -> types.ModuleType:
    """Import wkv_triton.py of docs/adding_a_kernel.md; Triton reads its source again."""
    page = (ROOT / "docs" / "adding_a_kernel.md").read_text()
    (code,) = re.findall(r'```python title="(wkv_triton.py)"\n(.*?)```', page, flags=re.S)
    path = Path(folder, code[0])
    path.write_text(code[1])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_guide() -> None:
    """Two blocks of channels, the second one partly filled."""
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, 2, 9, 150))
    w, u = -rng.exponential(size=150), rng.normal(size=150)
    with tempfile.TemporaryDirectory() as folder:
        y = guides_kernel(folder).launch(*map(jnp.float32, (k, v, w, u)))
    with jax.enable_x64(True):
        expected = ops.wkv(*map(jnp.float64, (k, v, w, u)), implementation="reference")
        assert_close(y, expected, FLOAT32)


@needs_interpreter
@pytest.mark.parametrize(
    "call",
    [
        *(f"test_triton.check_twins({op!r})" for op in TWINS),
        "test_triton.check_window_transformations()",
        "test_triton.check_guide()",
    ],
)
def test_interpreted_against_float64(call):
    run_python(INTERPRETED.format(call=call))


def _step_arguments(key_size=16, value_size=64, dtype="bfloat16", state="float32") -> list[Any]:
    shapes = [(key_size,), (key_size,), (value_size,)]
    sums = [(symmetric_size(key_size), value_size), (symmetric_size(key_size),)]
    return [
        *(jax.ShapeDtypeStruct((128, 16, *shape), dtype) for shape in shapes),
        *(jax.ShapeDtypeStruct((128, 16, *shape), state) for shape in sums),
    ]


def _window_arguments(slots=64, heads=16, kv_heads=16, size=64, dtype="bfloat16") -> list[Any]:
    token = [jax.ShapeDtypeStruct((128, n, size), dtype) for n in (heads, kv_heads, kv_heads)]
    ring = jax.ShapeDtypeStruct((128, slots, kv_heads, size), dtype)
    return [*token, ring, ring, jax.ShapeDtypeStruct((128,), "int32")]


WINDOWS = [{"dtype": "float32"}, {"slots": 129, "kv_heads": 1, "size": 128}, {"slots": 16, "size": 70}]

step = functools.partial(taylor_step, backend="triton")
in_window = functools.partial(window_step, rotary=Rotary(32), backend="triton")


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """jax_triton turns Triton's cache off for the whole process when it is imported."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


DEVICES = ("NVIDIA A100", "NVIDIA L40S", "NVIDIA H200", "NVIDIA B200")
"""One of each compute capability: 8.0, 8.9 (RTX 4090 too), 9.0 (H100 too), 10.0."""


STEPS = [
    *((step, _step_arguments(**sizes), "NVIDIA H200") for sizes in ({"state": "bfloat16"}, {"key_size": 32})),
    *((in_window, _window_arguments(**sizes), "NVIDIA H200") for sizes in WINDOWS),
    *((step, _step_arguments(value_size=112), kind) for kind in DEVICES),
    *((in_window, _window_arguments(kv_heads=4), kind) for kind in DEVICES),
]


@needs_compiler
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("function", "arguments", "device_kind"), STEPS)
def test_a_step_is_compiled_in_place(function, arguments, device_kind):
    """jax-triton compiles a kernel when it is lowered."""
    text = offline.lower(function, *arguments, device_kind=device_kind).as_text()
    assert "triton_kernel_call" in text
    assert text.count("output_operand_alias<") == 2


@needs_compiler
@pytest.mark.usefixtures("compiler")
def test_the_op_takes_its_name():
    k, v = (jax.ShapeDtypeStruct((2, 4, size), "float32") for size in (16, 24))
    cache = jax.eval_shape(lambda: ops.init_kv_cache(2, 6, 4, 16, 24))
    named = functools.partial(ops.window_step, rotary_dim=8, implementation="triton")
    assert "triton_kernel_call" in offline.lower(named, k, k, v, cache).as_text()


@needs_compiler
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("device_kind", DEVICES)
def test_the_guides_kernel_compiles_for_every_family_of_gpus(tmp_path, device_kind):
    shapes = [jax.ShapeDtypeStruct(size, "float32") for size in ((2, 64, 150), (2, 64, 150), (150,), (150,))]
    lowered = offline.lower(guides_kernel(tmp_path).launch, *shapes, device_kind=device_kind)
    assert "triton_kernel_call" in lowered.as_text()


def test_a_gpu_of_unknown_capability_is_named():
    with (
        offline.lowering_for("NVIDIA unheard of"),
        pytest.raises(ValueError, match="device_kind = 'NVIDIA unheard of': expected the name of a GPU"),
    ):
        offline.capability()


@needs_compiler
@pytest.mark.usefixtures("compiler")
def test_a_whole_call_passes_the_gpu_compiler():
    mesh = jax.sharding.Mesh(np.array(topology.topology()), ("device",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in _step_arguments()]
    with offline.lowering_for():
        text = topology.compile_program(step, *placed).as_text() or ""
    assert "triton_kernel_call" in text


@pytest.mark.parametrize("missing", ["triton", "jax_triton"])
def test_a_missing_package_is_named(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(
        ImportError, match=rf"backend = 'triton' needs {missing} \(pip install 'based-jax\[triton"
    ):
        step(*[jnp.ones((1, 1, 8))] * 5)


def test_wrong_backends_are_named():
    q = jnp.ones((1, 4, 1, 8))
    with pytest.raises(ValueError, match="backend = 'triton': expected 'pallas' or 'mosaic'"):
        taylor_attention(q, q, q, backend="triton")
    with pytest.raises(ValueError, match="backend = 'cuda': expected 'pallas' or 'triton'"):
        taylor_step(*[q[0]] * 5, backend="cuda")
    only = "backend = 'triton': expected 'pallas', the only one that `interpreted` runs"
    with interpreted(), pytest.raises(ValueError, match=only):
        step(*[q[0]] * 5)
