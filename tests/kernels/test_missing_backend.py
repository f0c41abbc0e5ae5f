"""A jax without Pallas' Triton backend: imports, CPUs and the interpreter do not need it, GPUs have twins."""

import sys

import jax
import jax.numpy as jnp
import pytest

import pallas_kernels
from based_jax import ops
from based_jax.ops.core import implementations
from pallas_kernels import launch, triton_launch
from tests.kernels.test_window_step import one_step
from tests.subprocesses import run_python

REASON = rf"this jax {jax.__version__} has no Pallas Triton backend .*; expected an older release"

ON_A_CPU = """
import sys


class Removed:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("jax.experimental.pallas.triton", "jax._src.pallas.triton")):
            raise ImportError(f"{name} was removed")


sys.meta_path.insert(0, Removed())

import dataclasses
import jax
import jax.numpy as jnp
import based_jax as bj
import pallas_kernels

small = dataclasses.replace(bj.presets.get("based-tiny"), d_model=32, schedule="LS", mlp_hidden=32)
model = bj.LanguageModel(small)
tokens = jnp.arange(8)[None]
shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)
loss = lambda params: model.apply(params, tokens)[0].astype(jnp.float32).var()
jax.jit(jax.value_and_grad(loss)).lower(shapes)
assert bj.ops.implementation_for("taylor_attention", *[jnp.ones((1, 2, 1, 4))] * 3) == "xla"
assert not any("pallas.triton" in name for name in sys.modules)
assert "was removed" in pallas_kernels.cannot_launch("pallas")
"""


@pytest.fixture
def removed(monkeypatch):
    """The backend cannot be imported."""
    monkeypatch.setitem(sys.modules, launch.BACKEND, None)


@pytest.fixture
def packages(monkeypatch):
    """The optional packages that seem to be installed."""
    found: set[str] = set()
    monkeypatch.setattr(implementations, "_has_module", found.__contains__)
    return found


def arrays(op):
    """q, k, v, for which all kernels exist."""
    shape = (1, 2) if op.endswith("step") else (1, 8, 2)
    return [jax.ShapeDtypeStruct((*shape, size), jnp.bfloat16) for size in (16, 16, 64)]


@pytest.mark.release
def test_models_import_and_train_on_a_cpu():
    run_python(ON_A_CPU)


@pytest.mark.parametrize("op", ["taylor_attention", "taylor_step", "window_step"])
@pytest.mark.usefixtures("removed")
def test_on_a_gpu_the_twins_take_the_place_of_the_kernels(op, packages, monkeypatch):
    with pallas_kernels.lowering_for("NVIDIA H200"):
        has_mosaic = op == "taylor_attention" and pallas_kernels.supports_mosaic_taylor_attention() is None
        without = "mosaic" if has_mosaic else "xla"
        assert ops.implementation_for(op, *arrays(op)) == without
        packages.update({"triton", "jax_triton"})
        with monkeypatch.context() as other:
            other.setitem(sys.modules, "jax_triton", None)  # installed, and made for another jax
            assert ops.implementation_for(op, *arrays(op)) == without
        monkeypatch.setattr(triton_launch, "require", lambda: None)
        twin = without if op == "taylor_attention" else "triton"
        assert ops.implementation_for(op, *arrays(op)) == twin
        if op != "taylor_attention":  # without arrays, Mosaic's jax is not asked for
            assert ops.implementation_for(op) == twin
        assert ops.implementation_for(op, *arrays(op), unsupported="no such option") == "xla"
        with pytest.raises(ValueError, match=f"^implementation = 'pallas': {REASON}"):
            ops.implementation_for(op, *arrays(op), implementation="pallas")
    assert ops.implementation_for(op, *arrays(op)) == "xla"


@pytest.mark.usefixtures("removed")
def test_calls_that_name_the_backend_get_the_reason():
    arrays, length, _ = one_step()
    with pytest.raises(ImportError, match=f"^backend = 'pallas': {REASON}"):
        pallas_kernels.window_step(*arrays, length)


@pytest.mark.usefixtures("removed")
def test_the_interpreter_does_without_the_backend():
    arrays, length, start = one_step()

    @jax.jit
    def step(*x):
        return pallas_kernels.window_step(*x[:-1], start=x[-1])

    with pallas_kernels.interpreted():
        assert ops.implementation_for("window_step", *arrays[:3]) == "pallas"
        y, *_ = step(*arrays, length, start)
    assert jnp.isfinite(y).all()
