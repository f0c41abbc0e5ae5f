"""Measure facts about the device, and the two rates from which every bound is computed."""

import subprocess
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu import journal
from benchmarks.gpu.io_model import GPUS, Cost
from benchmarks.gpu.sections.session import Session, Step
from benchmarks.gpu.sections.stopwatch import Candidate, jitted
from benchmarks.machine import versions

PACKAGES = ("jax-cuda13-plugin", "jax-cuda12-plugin", "triton", "jax-triton", "fla-core", "flax")


def facts() -> dict[str, Any]:
    """Return JSON-ready facts; unknown or missing ones are None."""
    device = jax.devices()[0]
    memory = device.memory_stats() or {}
    return {
        "device": device.device_kind,
        "devices": len(jax.devices()),
        "platform": device.platform,
        "platform_version": getattr(device.client, "platform_version", None),
        "memory_limit_bytes": memory.get("bytes_limit"),
        **_nvidia_smi(),
        **versions(PACKAGES),
    }


def _nvidia_smi() -> dict[str, Any]:
    """Return driver, clocks and power limit, as reported by nvidia-smi."""
    names = ("driver_version", "clocks.max.sm", "clocks.sm", "power.limit", "temperature.gpu")
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        values = output.splitlines()[0].split(",")
        return {name.replace(".", "_"): value.strip() for name, value in zip(names, values, strict=True)}
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return dict.fromkeys(name.replace(".", "_") for name in names)


def bound(session: Session, cost: Cost) -> float:
    """Return the least seconds for `cost` at the measured rates; before, at an H200's by its datasheet."""
    earlier = [] if session.path is None else journal.results(session.path.with_name("machine.jsonl"))
    measured = {row["what"]: row["per_second"] for row in earlier if row.get("per_second")}
    default = GPUS["H200"]
    return cost.seconds(measured.get("copy", default.bandwidth), measured.get("matmul", default.products))


def steps(session: Session) -> list[Step]:
    """List the steps: facts, copy bandwidth, matmul rate."""
    return [Step("facts", _facts), Step("copy", candidates=_copy), Step("matmul", candidates=_matmul)]


def _facts(session: Session) -> None:
    found = facts()
    session.add(step="facts", what="facts", status="passed", facts=found)
    session.say(", ".join(f"{k} {v}" for k, v in found.items() if v is not None)[:300])


def _copy(session: Session) -> list[Candidate]:
    """Copy 1 GiB of float32, far more than the 50 MiB of cache."""
    size = 2**10 if session.quick else 2**28
    x = jnp.ones((size,), jnp.float32)
    # Scaled, because the compiler removes a bare copy.
    work = {"per_second": 2 * 4 * size}
    return [Candidate("copy", lambda: jitted(lambda x: x * 1.5, [x]), ours=True, amounts=work)]


def _matmul(session: Session) -> list[Candidate]:
    size = 64 if session.quick else 8192
    # Random numbers, because a device draws less power on zeros, and clocks higher.
    a, b = (jax.random.normal(jax.random.key(i), (size, size), jnp.bfloat16) for i in range(2))
    work = {"per_second": 2 * size**3}
    return [Candidate("matmul", lambda: jitted(jnp.matmul, [a, b]), ours=True, amounts=work)]
