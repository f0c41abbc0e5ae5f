"""Section `torch`: the same work in torch, each step in a process of its own, which prints a row per case.

Neither framework gives memory back, and both compile kernels: one process cannot hold both fairly.
"""

import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from functools import partial
from typing import Any

from benchmarks.gpu.sections.forward import SWEEP, TARGETS
from benchmarks.gpu.sections.model import LENGTH, ROWS
from benchmarks.gpu.sections.session import UPDATE_SECONDS, Session, Step, UnavailableError

LONGEST_SECONDS = 120.0
"""Seconds of one process; compiling a model takes most of them."""

SIZES = (*TARGETS, (16, 2048), *SWEEP[:4])
"""(batch, length) at which attention is compared."""

PROGRAM = "benchmarks.torch_reference.on_gpu"

TRAINED = ("eager",)
"""How a Transformer++ of 360m is trained."""


def steps(session: Session) -> list[Step]:
    """List attention by flash-linear-attention in both directions, and training steps."""
    quick = session.quick
    sizes = [(1, 128)] if quick else SIZES
    jobs = {name: {"gradients": name == "backward", "sizes": sizes} for name in ("forward", "backward")}
    rows, length = (1, 64) if quick else (ROWS, LENGTH)
    for how in TRAINED:
        model = {"size": "tiny" if quick else "360m", "rows": rows, "length": length}
        jobs[f"train attention {how}"] = {"train": ["attention", how], **model}
    order = sorted(jobs, key=lambda name: not name.startswith("train"))
    return [Step(name, partial(_run, name, jobs[name]), needs_memory=True) for name in order]


def _run(name: str, job: dict[str, Any], session: Session) -> None:
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("torch is not installed")
    command = [sys.executable, "-m", PROGRAM, json.dumps(job)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, errors="replace")
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    ends = session.clock() + min(LONGEST_SECONDS, max(session.left(), 1.0))
    last = "nothing printed"
    try:
        while session.clock() < ends:
            try:
                line = lines.get(timeout=min(UPDATE_SECONDS, max(ends - session.clock(), 0.1)))
            except queue.Empty:
                session.save()
                continue
            if line is None:
                break
            if line.startswith("{"):
                _add(session, name, json.loads(line))
            last = line
        else:
            session.skip(name, "rest", "its time was spent")
            return
        if process.wait() != 0:
            session.fail(name, "torch", last[-500:], ours=False)
    finally:
        process.kill()
        process.wait()


def _add(session: Session, step: str, row: dict[str, Any]) -> None:
    session.add(step=step, **row)
    shown = f"{1e3 * row['seconds']:.4g} ms" if row["status"] == "measured" else row["reason"][:160]
    sizes = ", ".join(f"{key} {row[key]}" for key in ("batch", "length", "tokens_per_second") if key in row)
    session.say(f"{step}: {row['what']}: {shown} ({sizes})")


def _read(source: Any, lines: "queue.Queue[str | None]") -> None:
    with source:
        for line in source:
            if line.strip():
                lines.put(line.strip())
    lines.put(None)
