"""Running parts of the project in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PATIENCE = 240
"""seconds that a test waits for what comes at once on an idle machine; a busy one may be 100 times slower"""


def environment(devices: int = 1) -> dict[str, str]:
    """This process's environment, which has the settings of conftest.py, the repository and CPU devices."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
    }


def run_python(code: str, devices: int = 1) -> str:
    """Run `code`; its failure, or use of what is deprecated, is the test's."""
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", code]
    done = subprocess.run(command, env=environment(devices), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_module(*argv: str, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    """``python -m argv...``"""
    return subprocess.run(
        [sys.executable, "-m", *argv], env=environment(), capture_output=True, text=True, timeout=timeout
    )
