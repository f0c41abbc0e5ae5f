"""Versions of jaxlib whose programs for a CPU are wrong, and what JAX has no documented function for."""

import json
import os
import subprocess
import sys
from importlib import metadata

import jax
import numpy as np
import pytest

from based_jax import compat
from based_jax.broken_fusions import avoid_broken_fusions
from tests.marks import slow_but
from tests.subprocesses import PATIENCE, ROOT
from tests.tolerances import assert_close

# At these sizes jaxlib 0.10.2 returns 1e33 from the first and dies in the other two.
MIXERS = slow_but(["linear_attention"], ["linear_attention", "gla", "rwkv7"], core=[])

PROGRAM = """
import json, sys
import based_jax as bj
import jax
import numpy as np
from based_jax.testing.arrays import normals

x = np.random.default_rng(0).standard_normal((32, 32, 64)).astype(np.float32)
name = sys.argv[1]
options = {} if name == "rwkv7" else {"num_heads": 4}
mixer = bj.mixers.make(name, d_model=64, **options)
variables = normals(mixer.init, x[:1])
many = jax.jit(lambda v, x: mixer.apply(v, x, mixer.init_state(len(x), 64))[0])(variables, x)
few = jax.jit(lambda v, x: mixer.apply(v, x)[0])(variables, x[:2])
print(json.dumps([np.asarray(many[:2]).tolist(), np.asarray(few).tolist()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXERS)
def test_a_row_does_not_depend_on_how_many_there_are(name):
    """In a process with XLA's own settings: the suite's leave out most optimizations."""
    settings = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name],
        env={**kept, **settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-500:]}"
    many, few = (np.asarray(y) for y in json.loads(done.stdout))
    assert_close(many, few, 1e-5)  # float32; sums of another order


@pytest.mark.parametrize(
    ("version", "flags", "expected"),
    [
        ("0.10.2", None, "--xla_cpu_experimental_ynn_fusion_type="),
        ("0.12.0.1", "--a=b", "--a=b --xla_cpu_experimental_ynn_fusion_type="),
        ("0.10.2", "--xla_cpu_experimental_ynn_fusion_type=x", "--xla_cpu_experimental_ynn_fusion_type=x"),
        ("0.10.1", None, None),
        ("0.13.0", None, None),
    ],
)
def test_the_flag(monkeypatch, version, flags, expected):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    monkeypatch.setattr(compat, "is_jax_used", lambda: False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if flags is not None:
        monkeypatch.setenv("XLA_FLAGS", flags)
    avoid_broken_fusions()
    assert os.environ.get("XLA_FLAGS") == expected


def test_too_late_is_said(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.10.2")
    monkeypatch.setattr(compat, "is_jax_used", lambda: True)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with pytest.warns(UserWarning, match="import it first or set XLA_FLAGS"):
        avoid_broken_fusions()
    assert "XLA_FLAGS" not in os.environ


def test_one_file_uses_private_names():
    """And the exported runner, which stands alone."""
    files = [
        path for room in ("based_jax", "pallas_kernels", "train") for path in (ROOT / room).rglob("*.py")
    ]
    users = [path.name for path in files if "jax._src" in path.read_text()]
    assert sorted(users) == ["compat.py", "runner.py"]


def test_whether_operations_are_recorded():
    found = []

    def function(x):
        found.append(compat.is_recording())
        return 2 * x

    for transformed in (jax.grad(function), jax.jit(function), jax.vmap(jax.jit(jax.grad(function)))):
        transformed(np.ones(()) if len(found) < 2 else np.ones(1))
    jax.vmap(jax.grad(function))(np.ones(1))
    assert found == [False, True, True, False]
