"""Find devices for jobs: one process per accelerator, or a share of the CPU's cores each."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

ON_CPU = 2
"""Processes at a time on a CPU: small models leave much of a second core idle, and compiling most of it."""

_PROBE = "import jax; print(jax.default_backend(), jax.local_device_count())"


@dataclass(frozen=True)
class Slot:
    """The resources of one process at a time."""

    name: str
    environment: Mapping[str, str]  # added to the process's own


def find_slots(count: int | None = None) -> list[Slot]:
    """Return `count` slots for processes, by default one for each accelerator, or two on a CPU.

    The devices are counted in a separate process: a process that has used them holds the accelerators'
    memory. An OSError reports that JAX finds none.
    """
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True)
    if probe.returncode:
        raise OSError(f"JAX finds no device: {probe.stderr.strip().splitlines()[-1:]}")
    backend, devices = probe.stdout.split()[-2:]
    if backend == "cpu":
        return _on_cpu(count or min(ON_CPU, os.cpu_count() or 1))
    return _on_accelerators(int(devices), count)


def _on_accelerators(devices: int, count: int | None) -> list[Slot]:
    names = [str(index % devices) for index in range(count or devices)]
    variables = ("JAX_CUDA_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES")
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if len(names) > devices else {}
    return [Slot(f"device {name}", {**dict.fromkeys(variables, name), **shared}) for name in names]


def _on_cpu(count: int) -> list[Slot]:
    """Make slots with a share of the cores each; XLA takes its number of threads from NPROC."""
    threads = str(max((os.cpu_count() or 1) // count, 1))
    return [Slot(f"cpu {index}", {"NPROC": threads}) for index in range(count)]
