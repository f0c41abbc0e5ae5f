"""`gpu`: measure the kernels on a GPU completely, in one run of some minutes.

Each section runs in a process of its own, which writes its rows as they come, one JSON object a line. If it
dies, hangs or loses its device, another one continues, and leaves out the case that ended the last. This
process watches, and writes the report of all sections.
"""

import contextlib
import faulthandler
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from based_jax.validate import expect, expect_writable
from benchmarks import report
from benchmarks.flags import Names, expect_items
from benchmarks.gpu import journal
from benchmarks.gpu.sections.targets import summary
from pallas_kernels import launch

SECTIONS: dict[str, tuple[str, str]] = {
    "machine": ("device", "steps"),
    "correctness": ("correctness", "steps"),
    "mosaic": ("correctness", "mosaic_steps"),
    "forward": ("forward", "forward_steps"),
    "backward": ("forward", "backward_steps"),
    "train": ("model", "train_steps"),
    "generate": ("model", "generate_steps"),
    "prefill": ("model", "prefill_steps"),
    "decode": ("decode", "decode_steps"),
    "window": ("decode", "window_steps"),
    "wide": ("forward", "wide_steps"),
    "torch": ("torch_steps", "steps"),
    "tune": ("tune", "steps"),
}
"""Name -> module of `sections`, and its function that lists the steps. In this order."""

DEFAULT = tuple(name for name in SECTIONS if name != "tune")
"""Sections that run without --sections."""

CALIBRATION = "machine"
"""Always runs: every bound is made of its two rates."""

OWN_SHARE = 0.97
"""Share of the time for measuring; the rest is for starting and ending processes."""

MAX_PROCESSES = 12
"""Maximum processes of a section; if more end early, leaving out what ended them does not help."""

WRONG, DEVICE_LOST, INTERRUPTED = 2, 75, 130
"""Exit statuses: wrong flags or no GPU, a process whose device stopped answering, and Ctrl-C."""


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
    sections: Names = DEFAULT
    """Sections to measure: machine (always), correctness, mosaic, forward, backward, train, generate,
    prefill, decode, window, wide, torch; by default all these. On request tune: other block sizes."""
    quick: bool = False
    """Use tiny sizes and one sample, to test the command itself."""
    interpret: bool = False
    """Run the kernels in the interpreter, on a machine without a GPU; only with --quick."""
    resume: bool = False
    """Continue an earlier run: its numbers stay, and what it has measured is left out."""
    until: float | None = None
    """Set by the process that watches this one, which measures the one section into the journal --json: time
    at which it ends, in seconds since 1970."""

    def run(self, command: str) -> int:
        """Measure; return 0, or 1 if numbers are wrong or something of ours failed, 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or there is no GPU.
        """
        if self.until is not None:
            return self._measure(self.until)
        self._check()
        with tempfile.TemporaryDirectory() as folder:
            return self._watch(command, self.path or Path(folder, "gpu.json"))

    def _check(self) -> None:
        expect_items(self, sections=tuple(SECTIONS))
        expect(self.minutes > 0, "--minutes", self.minutes, "more than 0")
        expect(not self.interpret or self.quick, "--interpret", True, "--quick, the interpreter is slow")
        expect(self.out is None or self.json is None, "--out", str(self.out), "--out or --json, not both")
        expect(not self.resume or self.path is not None, "--resume", True, "--out DIR of the run to resume")
        expect_writable(self, "path")

    @property
    def path(self) -> Path | None:
        """Return the file of the report, or None."""
        return self.json if self.out is None else self.out / "gpu.json"

    def _watch(self, command: str, path: Path) -> int:
        """Run a process for each section, and write the report after each."""
        for name, value in environment().items():
            os.environ.setdefault(name, value)
        journals = {name: path.with_suffix(".sections") / f"{name}.jsonl" for name in SECTIONS}
        if not self.resume:
            for each in journals.values():
                each.unlink(missing_ok=True)
        chosen = [name for name in SECTIONS if name in (CALIBRATION, *self.sections)]
        settings = {name: getattr(self, name) for name in ("quick", "interpret", "minutes")}
        if self.resume and path.exists():
            before = journal.load(path, ("gpu",))["settings"]
            for name in ("quick", "interpret"):
                expected = f"{before[name]}, as in the run to resume"
                expect(settings[name] == before[name], name, settings[name], expected)
        found = report.new_report("gpu", command, settings | {"sections": chosen}, [], [NOTE])
        begun = time.time()
        for name in chosen:
            status = self._section(name, journals[name], begun)
            if status == WRONG:
                return status
            found = merged(found, journals)
            if found["rows"]:
                journal.save(found, path)
            if status == INTERRUPTED:
                return status
        return say_result(found)

    def _section(self, name: str, path: Path, begun: float) -> int:
        """Measure a section in processes of its own, unless it is complete; return the exit status."""
        seconds = 60 * self.minutes
        until = begun + OWN_SHARE * seconds
        if journal.is_complete(path):
            return 0
        if time.time() > until:
            report.say(f"{name}: the time is spent, --resume goes on")
            return 0
        command = [sys.executable, "-m", "benchmarks", "gpu", f"--sections={name}", f"--json={path}"]
        command += [f"--until={until:.1f}"]
        command += [f"--{flag}" for flag in ("quick", "interpret") if getattr(self, flag)]
        return watch(command, path, begun + seconds - time.time(), report.say)

    def _measure(self, until: float) -> int:
        """Measure a section."""
        from benchmarks.gpu.sections import stopwatch
        from benchmarks.gpu.sections.session import DeviceLostError, Session

        options: dict[str, Any] = {"quick": self.quick, "interpret": self.interpret}
        if not self.interpret:
            expect((found := backend()) == "gpu", "device", found, NO_GPU)
            options["alive"] = functools.partial(faulthandler.dump_traceback_later, exit=True)
            # Cached compilations also serve a process that replaces this one.
            jax.config.update("jax_compilation_cache_dir", os.path.join(_scratch(), "jax"))
        (section,) = self.sections
        device = jax.devices()[0].device_kind
        path = self.json and self.json.with_name(f"{CALIBRATION}.jsonl")
        for row in journal.lines(path) if path else ():
            before = row.get("facts", {}).get("device", device)
            expect(device == before, "device", device, f"{before}, that of the run to resume")
        minutes = max(0.0, until - time.time()) / 60
        session = Session(section, self.json, minutes, report.say, **options)
        try:
            with launching(self.interpret):
                stopwatch.run(session, stopwatch.listed(session, *SECTIONS[section]))
        except DeviceLostError as error:
            session.say(f"the device is lost: {error}")
            return DEVICE_LOST
        return 0


NO_GPU = "a GPU; `--quick --interpret` tries the command without one"

NOTE = (
    "seconds are medians per operation; ratio_to_first is over the first candidate of the step (ours); "
    "bound_fraction is the least time that the measured copy bandwidth and matmul rate allow for the bytes "
    "and FLOPs of our kernels, over the time."
)


def watch(command: Sequence[str], path: Path, seconds: float, log: Callable[[str], None]) -> int:
    """Run `command` until it ends by itself, makes no progress, or time is over; return its exit status.

    Args:
        command: appends to the journal `path`, and leaves out what was running when the last process ended.
        seconds: time for all processes together; then the running one is killed, which is no failure.
    """
    ends, status = time.monotonic() + seconds, 1
    for _ in range(MAX_PROCESSES):
        before = len(journal.lines(path))
        try:
            status = subprocess.run(command, timeout=ends - time.monotonic()).returncode
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as end:
            if path.exists():  # what was running broke nothing
                journal.append({"status": journal.STOPPED}, path)
            log("the time limit is reached" if isinstance(end, subprocess.TimeoutExpired) else "interrupted")
            return 0 if isinstance(end, subprocess.TimeoutExpired) else INTERRUPTED
        if status in (0, WRONG, INTERRUPTED) or len(journal.lines(path)) == before:
            return status
        log(f"the measuring process ended with status {status}; another one continues")
    log(f"gave up after {MAX_PROCESSES} processes")
    return status


def merged(found: report.Report, journals: Mapping[str, Path]) -> report.Report:
    """Return a report with the rows of all sections so far, and what they say of the machine."""
    rows = [row for path in journals.values() for row in journal.results(path)]
    facts = [row["facts"] for row in rows if "facts" in row]
    rows = [row for row in rows if "facts" not in row]
    complete = all(journal.is_complete(journals[name]) for name in found["settings"]["sections"])
    machine = found["machine"] | (facts[-1] if facts else {})
    return found | {"rows": rows, "machine": machine, "complete": complete, "summary": summary(rows)}


def say_result(found: report.Report) -> int:
    """Print the last lines; return the exit status."""
    rows = found["rows"]
    for section, counts in found["summary"]["rows"].items():
        report.say(f"{section}: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    for target, wanted, measured in found["summary"]["tables"]["targets"]:
        report.say(f"{target}: wanted {wanted}: {measured or 'not measured'}")
    bad = [row for row in rows if row["status"] in ("wrong", "failed")]
    for row in bad:
        report.say(
            f"{row['status'].upper()}: {row['section']}, {row['step']}, {row['what']}: {row['reason']}"
        )
    ours = [row for row in bad if row.get("ours", True)]
    return int(bool(ours) or not any(row["status"] in ("measured", "passed") for row in rows))


@contextlib.contextmanager
def launching(interpret: bool) -> Iterator[None]:
    """Launch kernels inside, in the interpreter if `interpret`, without jax's warning at every lowering.

    jax 0.11 warns that the Triton backend of Pallas will be removed; see docs/kernels.md.
    """
    with warnings.catch_warnings(), launch.interpreted() if interpret else contextlib.nullcontext():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        yield


def backend() -> str:
    """Return the platform of the first device, such as "gpu", or why there is none."""
    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # jax 0.10 asserts that JAX_PLATFORMS has one
        return str(error) or "none"


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
