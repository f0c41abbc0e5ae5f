"""Section `torch`: the same work in torch, each step in a process of its own, which prints a row per case.

Neither framework gives memory back, and both compile kernels: one process cannot hold both fairly.
"""

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

from benchmarks.gpu.sections.forward import SWEEP, TARGETS
from benchmarks.gpu.sections.model import LENGTH, ROWS
from benchmarks.gpu.sections.session import STUCK_SECONDS, Session, Step, UnavailableError

LONGEST_SECONDS = 120.0
"""Seconds of one process; compiling a model takes most of them."""

SIZES = (*TARGETS, (16, 2048), *SWEEP[:4])
"""(batch, length) at which attention is compared."""

PROGRAM = "benchmarks.torch_reference.on_gpu"

TRAINED = ("eager", "compiled")
"""How a Transformer++ of 360m is trained."""


def steps(session: Session) -> list[Step]:
    """List attention by flash-linear-attention in both directions, and training steps."""
    quick = session.quick
    sizes = [(1, 128)] if quick else SIZES
    rows, length = (1, 64) if quick else (ROWS, LENGTH)
    model = {"size": "tiny" if quick else "360m", "rows": rows, "length": length}
    jobs = {f"train attention {how}": {"train": ["attention", how], **model} for how in TRAINED}
    jobs |= {name: {"gradients": name == "backward", "sizes": sizes} for name in ("forward", "backward")}
    least = 0.0 if quick else LONGEST_SECONDS
    return [Step(name, partial(_run, name, job), least=least) for name, job in jobs.items()]


def _run(name: str, job: dict[str, Any], session: Session) -> None:
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("torch is not installed")
    limit = LONGEST_SECONDS
    command = [sys.executable, "-m", PROGRAM, json.dumps(job | {"seconds": limit})]
    session.alive(limit + STUCK_SECONDS)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=limit)
        output, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as end:
        output, status = end.stdout or b"", None
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    for line in lines:
        if line.startswith("{"):
            _add(session, name, json.loads(line))
    if status is None:
        session.skip(name, "rest", "its time was spent")
    elif status != 0:
        session.fail(name, "torch", (lines or ["nothing printed"])[-1][-500:], ours=False)


def _add(session: Session, step: str, row: dict[str, Any]) -> None:
    session.add(step=step, **row)
    shown = f"{1e3 * row['seconds']:.4g} ms" if row["status"] == "measured" else row["reason"][:160]
    sizes = ", ".join(f"{key} {row[key]}" for key in ("batch", "length", "tokens_per_second") if key in row)
    session.say(f"{step}: {row['what']}: {shown} ({sizes})")
