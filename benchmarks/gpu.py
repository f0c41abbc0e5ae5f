"""`gpu`: measure the kernels on a GPU completely, in one run of some minutes.

One process only watches; another one measures and writes the report after every step. If that one dies,
hangs or loses its device, the first starts another, which leaves out the step that ended the last.
"""

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks import report
from benchmarks.flags import comma_list, expect_writable
from pallas_kernels import supervisor
from pallas_kernels.checks import expect
from pallas_kernels.measuring import backend, launching

SECTIONS: dict[str, tuple[str, str, float]] = {
    "machine": ("device", "steps", 2),
    "correctness": ("correctness", "steps", 10),
    "forward": ("forward", "forward_steps", 9),
    "backward": ("forward", "backward_steps", 7),
    "blocks": ("forward", "block_steps", 2),
    "kernels": ("kernels", "steps", 3),
    "tuning": ("kernels", "tuning_steps", 5),
    "decode": ("decode", "decode_steps", 4),
    "window": ("decode", "window_steps", 3),
    "model": ("model", "steps", 4),
    "mosaic": ("correctness", "mosaic_steps", 4),
    "mosaic_forward": ("forward", "mosaic_steps", 4),
}
"""Name -> module of `gpu_sections`, its function that lists the steps, share of the time. In this order."""

ON_REQUEST = ("mosaic", "mosaic_forward")
"""Run alone: a fault in them (descriptors of copies that the host encodes) may end or hang a process."""

CALIBRATION = "machine"
"""Always runs: every bound is made of its two rates."""


@dataclass(frozen=True)
class Gpu:
    """Measure correctness and speed of the fused kernels on this GPU, compared with their peers.

    Writes the JSON after every step, so an interrupted run keeps its numbers. See benchmarks/gpu.md.
    """

    out: Path | None = None
    """Write every number into gpu.json in this directory."""
    json: Path | None = None
    """Write every number into this file instead."""
    minutes: float = 8.0
    """Time for this command, divided among the sections; steps that do not fit are skipped."""
    sections: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = tuple(
        name for name in SECTIONS if name not in ON_REQUEST
    )
    """Sections to measure: machine (always), correctness, forward, backward, blocks, kernels, tuning, decode,
    window, model; on request also mosaic and mosaic_forward."""
    samples: int = 10
    """Samples per median."""
    quick: bool = False
    """Use tiny sizes and one sample, to test the command itself."""
    interpret: bool = False
    """Run the kernels in the interpreter, on a machine without a GPU; only with --quick."""
    resume: bool = False
    """Continue an earlier run: its numbers stay, and the step that ended it is left out."""
    until: float | None = None
    """Set by the process that watches this one: time at which it ends, in seconds since 1970."""
    stuck: float = 180.0
    """Seconds without an update of the report after which the measuring process is replaced."""

    def run(self, command: str) -> int:
        """Measure; return 0, or 1 if numbers are wrong or something of ours failed, 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or there is no GPU.
        """
        self._check()
        # Read when the device is first used, since torch needs some of its memory, too.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.85")
        if self.until is not None or self.interpret:
            return self._measure(command)
        return self._watch()

    def _check(self) -> None:
        expect(len(self.sections) > 0, "--sections", "", "at least one section")
        for section in self.sections:
            expect(section in SECTIONS, "--sections", section, "one of " + ", ".join(map(repr, SECTIONS)))
        for flag, value in (
            ("--minutes", self.minutes),
            ("--samples", self.samples),
            ("--stuck", self.stuck),
        ):
            expect(value > 0, flag, value, "more than 0")
        expect(not self.interpret or self.quick, "--interpret", True, "--quick, the interpreter is slow")
        expect(self.out is None or self.json is None, "--out", str(self.out), "--out or --json, not both")
        expect(not self.resume or self.path is not None, "--resume", True, "--out DIR of the run to resume")
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
        expect_writable("--json" if self.out is None else "--out", self.path)

    @property
    def path(self) -> Path | None:
        """Return the file of the report, or None."""
        return self.json if self.out is None else self.out / "gpu.json"

    def _watch(self) -> int:
        """Start workers until one reaches the end."""
        with tempfile.TemporaryDirectory() as folder:
            path = self.path or Path(folder, "gpu.json")
            flags = [f"--json={path}", f"--minutes={self.minutes}", f"--sections={','.join(self.sections)}"]
            flags += [f"--samples={self.samples}", *(["--quick"] if self.quick else [])]
            command = [sys.executable, "-m", "benchmarks", "gpu", *flags]
            return supervisor.watch(command, path, self.stuck, log, self.resume, 60 * self.minutes)

    def _measure(self, command: str) -> int:
        if self.interpret:
            import based_jax  # noqa: F401  (sets XLA_FLAGS for CPUs, before JAX reads them)
        import jax

        from benchmarks.gpu_sections.session import Session, Sizing, resume
        from pallas_kernels.journal import DEVICE_LOST, DeviceLostError

        if not self.interpret:
            expect((found := backend()) == "gpu", "device", found, NO_GPU)
            # Cached compilations also serve a process that replaces this one.
            cache = Path(tempfile.gettempdir(), f"based_jax_gpu_benchmark_{os.getuid()}")
            jax.config.update("jax_compilation_cache_dir", str(cache))
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        settings |= {"json": self.path and self.path.name, "out": None, "sections": list(self.sections)}
        fresh = report.new_report("gpu", command, settings, [], [NOTE])
        fresh |= {"elapsed_seconds": 0.0, "running": None, "broken": [], "done": []}
        results = resume(self.path, fresh) if self.resume and self.path else fresh
        sizing = Sizing(self.quick, self.interpret, 1 if self.quick else self.samples)
        minutes = self.minutes if self.until is None else max(0.0, self.until - time.time()) / 60
        session = Session(results, self.path, minutes, sizing, log)
        try:
            with launching(self.interpret):
                run_sections(session, self.sections)
        except KeyboardInterrupt:
            results["running"] = None
            session.save()
            return 130
        except DeviceLostError as error:
            session.say(f"the device is lost: {error}")
            session.save()
            return DEVICE_LOST
        results |= {"complete": True, "running": None}
        session.save()
        return say_result(session)


NO_GPU = "a GPU; `--quick --interpret` tries the command without one"

NOTE = (
    "seconds are medians per operation; ratio_to_first is over the first candidate of the step (ours); "
    "bound_fraction is the least time that the measured copy bandwidth and matmul rate allow for the bytes "
    "and FLOPs of our kernels (of softmax for softmax), over the time."
)


def run_sections(session: Any, names: Sequence[str]) -> None:
    """Run the sections in order; each gets its share of the remaining time."""
    import importlib

    wanted = [name for name in SECTIONS if name in names or name == CALIBRATION]
    for position, name in enumerate(wanted):
        module, function, share = SECTIONS[name]
        shares = sum(SECTIONS[other][2] for other in wanted[position:])
        left = 60 * session.minutes - session.elapsed
        session.section = name
        steps: Any = []
        with session.guarded("listing", "all"):
            steps = getattr(importlib.import_module(f"benchmarks.gpu_sections.{module}"), function)(session)
        session.run_section(name, steps, max(0.0, left * share / shares))


def say_result(session: Any) -> int:
    """Print the last lines; return the exit status."""
    rows, found = session.report["rows"], session.report["summary"]
    for section, counts in found["rows"].items():
        session.say(f"{section}: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    for target in found["targets"]:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[target["met"]]
        value = "" if target["measured"] is None else f" {target['measured']:.3g},"
        session.say(f"{target['target']}:{value} wanted {target['wanted']}: {verdict}")
    bad = [row for row in rows if row["status"] in ("wrong", "failed")]
    for row in bad:
        session.say(
            f"{row['status'].upper()}: {row['section']}, {row['step']}, {row['what']}: {row['reason']}"
        )
    ours = [row for row in bad if row.get("ours", True)]
    return int(bool(ours) or not any(row["status"] in ("measured", "passed") for row in rows))


def log(text: str) -> None:
    """Print a line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)
