"""`gpu`: measure the kernels on a GPU completely, in one run of some minutes.

One process only watches; another one measures and writes the report after every step. If that one dies,
hangs or loses its device, the first starts another, which leaves out the step that ended the last.
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks import report
from benchmarks.flags import comma_list, expect_writable
from benchmarks.gpu import journal, supervisor
from benchmarks.gpu.launching import backend, launching
from pallas_kernels.checks import expect

SECTIONS: dict[str, tuple[str, str]] = {
    "machine": ("device", "steps"),
    "correctness": ("correctness", "steps"),
    "mosaic": ("correctness", "mosaic_steps"),
    "train": ("model", "train_steps"),
    "generate": ("model", "generate_steps"),
    "prefill": ("model", "prefill_steps"),
    "torch": ("torch_steps", "steps"),
    "forward": ("forward", "forward_steps"),
    "backward": ("forward", "backward_steps"),
    "decode": ("decode", "decode_steps"),
    "window": ("decode", "window_steps"),
    "wide": ("forward", "wide_steps"),
    "tune": ("tune", "steps"),
}
"""Name -> module of `sections`, and its function that lists the steps. In this order."""

DEFAULT = tuple(name for name in SECTIONS if name != "tune")
"""Sections that run without --sections."""

CALIBRATION = "machine"
"""Always runs: every bound is made of its two rates."""

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Gpu:
    """Measure correctness and speed of the fused kernels on this GPU, compared with their peers.

    Writes the JSON after every step, so an interrupted run keeps its numbers. See benchmarks/gpu.md.
    """

    out: Path | None = None
    """Write every number into gpu.json in this directory."""
    json: Path | None = None
    """Write every number into this file instead."""
    minutes: float = 12.0
    """Time for this command; what does not fit is skipped, and measured by a later command with --resume."""
    sections: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = DEFAULT
    """Sections to measure: machine (always), correctness, mosaic, train, generate, prefill, torch, forward,
    backward, decode, window, wide; by default all these. On request tune: other block sizes of kernels."""
    quick: bool = False
    """Use tiny sizes and one sample, to test the command itself."""
    interpret: bool = False
    """Run the kernels in the interpreter, on a machine without a GPU; only with --quick."""
    resume: bool = False
    """Continue an earlier run: its numbers stay, and the step that ended it is left out."""
    until: float | None = None
    """Set by the process that watches this one: time at which it ends, in seconds since 1970."""

    def run(self, command: str) -> int:
        """Measure; return 0, or 1 if numbers are wrong or something of ours failed, 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or there is no GPU.
        """
        self._check()
        for name, value in environment().items():
            os.environ.setdefault(name, value)
        if self.until is not None or self.interpret:
            return self._measure(command)
        return self._watch()

    def _check(self) -> None:
        expect(len(self.sections) > 0, "--sections", "", "at least one section")
        for section in self.sections:
            expect(section in SECTIONS, "--sections", section, "one of " + ", ".join(map(repr, SECTIONS)))
        expect(self.minutes > 0, "--minutes", self.minutes, "more than 0")
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
            command = [
                sys.executable,
                "-m",
                "benchmarks",
                "gpu",
                *flags,
                *(["--quick"] if self.quick else []),
            ]
            status = supervisor.watch(command, path, report.say, self.resume, 60 * self.minutes)
            if status == supervisor.TIME_OVER and path.exists():  # what was running broke nothing
                journal.save(json.loads(path.read_text()) | {"running": None}, path)
                return 0
            return status

    def _measure(self, command: str) -> int:
        if self.interpret:
            import based_jax  # noqa: F401  (sets XLA_FLAGS for CPUs, before JAX reads them)
        import jax

        from benchmarks.gpu.journal import DEVICE_LOST, DeviceLostError
        from benchmarks.gpu.sections import running
        from benchmarks.gpu.sections.session import Session, resume

        if not self.interpret:
            expect((found := backend()) == "gpu", "device", found, NO_GPU)
            # Cached compilations also serve a process that replaces this one.
            jax.config.update("jax_compilation_cache_dir", os.path.join(_scratch(), "jax"))
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        settings |= {"json": self.path and self.path.name, "out": None, "sections": list(self.sections)}
        fresh = report.new_report("gpu", command, settings, [], [NOTE])
        fresh |= {"sources": running.sources(), "elapsed_seconds": 0.0}
        fresh |= {"running": None, "broken": [], "done": []}
        results = resume(self.path, fresh) if self.resume and self.path else fresh
        minutes = self.minutes if self.until is None else max(0.0, self.until - time.time()) / 60
        session = Session(results, self.path, minutes, report.say, self.quick, self.interpret)
        chosen = {name: SECTIONS[name] for name in SECTIONS if name in (CALIBRATION, *self.sections)}
        status = DEVICE_LOST
        try:
            with launching(self.interpret):
                steps = running.listed(session, chosen)
                before = running.committed(RESULTS, jax.devices()[0].device_kind)
                running.run(session, running.in_order(steps, before, results["sources"]))
            results |= {"complete": True}
            session.say("all is measured, or the time is spent")
        except KeyboardInterrupt:
            status = 130
        except DeviceLostError as error:
            session.say(f"the device is lost: {error}")
            session.save()
            return status
        except running.NewProcessNeededError as error:
            session.say(f"{error} needs the memory that this process holds")
        results["running"] = None
        session.save()
        return say_result(session) if results["complete"] else status


NO_GPU = "a GPU; `--quick --interpret` tries the command without one"

NOTE = (
    "seconds are medians per operation; ratio_to_first is over the first candidate of the step (ours); "
    "bound_fraction is the least time that the measured copy bandwidth and matmul rate allow for the bytes "
    "and FLOPs of our kernels, over the time."
)


def say_result(session: Any) -> int:
    """Print the last lines; return the exit status."""
    rows, found = session.report["rows"], session.report["summary"]
    for section, counts in found["rows"].items():
        session.say(f"{section}: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    for target, wanted, measured in found["tables"]["targets"]:
        session.say(f"{target}: wanted {wanted}: {measured or 'not measured'}")
    bad = [row for row in rows if row["status"] in ("wrong", "failed")]
    for row in bad:
        session.say(
            f"{row['status'].upper()}: {row['section']}, {row['step']}, {row['what']}: {row['reason']}"
        )
    ours = [row for row in bad if row.get("ours", True)]
    return int(bool(ours) or not any(row["status"] in ("measured", "passed") for row in rows))


def environment() -> dict[str, str]:
    """Return what the processes need in their environment, where it is not set."""
    scratch, root = _scratch(), cuda_root()
    return {
        "HOME": scratch,
        "TRITON_CACHE_DIR": os.path.join(scratch, "triton"),
        "TORCHINDUCTOR_CACHE_DIR": os.path.join(scratch, "inductor"),
        **({"CUDA_ROOT": root} if root else {}),
        "PYTHONUNBUFFERED": "1",
        # torch needs memory, too.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9",
    }


def cuda_root() -> str | None:
    """Return the value that CUDA_ROOT must have, or None if JAX finds CUDA's tools by itself.

    JAX takes the package `nvidia.cu13` for the toolkit even if it lacks the assembler, and then passes the
    path "None" to the compiler.
    """
    spec = None
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec("nvidia.cu13")
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders or any(Path(folder, "bin", "ptxas").exists() for folder in folders):
        return None
    assembler = shutil.which("ptxas")
    roots = [Path(assembler).resolve().parent.parent] if assembler else []
    return next((str(root) for root in [*roots, Path("/usr/local/cuda")] if (root / "bin").is_dir()), None)


def _scratch() -> str:
    """Return a folder for caches, which exists."""
    folder = Path(tempfile.gettempdir(), f"based_jax_gpu_benchmark_{os.getuid()}")
    folder.mkdir(exist_ok=True)
    return str(folder)
