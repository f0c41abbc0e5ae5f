"""`lease`: run the list of GPU measurements in steps that fit a rented machine.

Such a machine is rented for 30 to 45 minutes, allows some ten minutes a command, has no network, and keeps
only what a command writes into one directory. A step therefore installs the wheels that came with it
(`make gpu-wheels`), runs its commands, and ends by itself. Its reports are updated after every case, so an
interruption costs one case. See benchmarks/gpu.md.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pallas_kernels.checks import expect

ROOT = Path(__file__).resolve().parent.parent

LEASE_MINUTES = 45.0

LONGEST_STEP = 9.5
"""Minutes: a command may take ten."""

GRACE = 8.0
"""Seconds that a command may take to end after its own minutes."""

LOG = "lease.log"


@dataclass(frozen=True)
class Run:
    """One command of a step."""

    argv: tuple[str, ...]
    """arguments after ``python -m``"""
    share: float = 1.0
    """share of the step's minutes"""
    names_kernels: bool = True
    """whether it names kernels, which need --interpret without a GPU"""


@dataclass(frozen=True)
class Step:
    """An independent part of the list."""

    title: str
    minutes: float
    """minutes, of a lease of 45"""
    runs: tuple[Run, ...]


def _gpu(name: str, sections: str, share: float = 1.0) -> Run:
    path = f"{{out}}/gpu_{name}.json"
    return Run(("benchmarks", "gpu", "--sections", f"machine,{sections}", "--json", path), share)


DECODE = (
    "benchmarks",
    "decode",
    "--presets",
    "360m",
    "--models",
    "based,attention,attention_cudnn",
    "--parts",
    "contexts,prefill,batches",
    "--contexts",
    "2048,32768",
    "--context-batches",
    "1",
    "--lengths",
    "2048,16384",
    "--batches",
    "1,128",
    "--tokens",
    "256",
    "--samples",
    "2",
    "--seconds",
    "10",
    "--out",
    "{out}",
)

BACKENDS = ("pallas_kernels.backends", "--value-sizes", "64", "--out", "{out}")

STEPS = (
    Step("correctness", 9.3, (_gpu("correctness", "correctness"),)),
    Step("speed of the kernels", 9.3, (_gpu("speed", "forward,backward,blocks,kernels,tuning"),)),
    Step("decoding and a whole model", 9.3, (_gpu("decode", "decode,window,model"),)),
    Step(
        "decoding of 360m models, attention through cuDNN beside it", 9.0, (Run(DECODE, names_kernels=False),)
    ),
    Step("Mosaic", 8.0, (_gpu("mosaic", "mosaic,mosaic_forward", 0.6), Run(BACKENDS, 0.4))),
)
"""Most important first: three steps fit into 28 minutes, all of them into 45."""


@dataclass(frozen=True)
class Lease:
    """Run one step of the list of GPU measurements (benchmarks/gpu.md), inside its minutes.

    Steps: 1 correctness; 2 forward, backward, blocks, kernels; 3 decoding and a whole model; 4 decoding of
    360m models; 5 Mosaic.
    """

    step: int
    """Number of the step, from 1 on."""
    out: Path
    """Directory of the reports and of lease.log."""
    minutes: float = LEASE_MINUTES
    """Length of the whole lease; the step takes its share of it, at most 9.5."""
    wheels: Path = ROOT / "wheels"
    """Folder that `make gpu-wheels` filled; the step installs its wheels for itself, without a network."""
    resume: bool = False
    """Continue with the reports in --out: their numbers stay, and cases that ended a process are left out."""
    quick: bool = False
    """Use tiny sizes, to test the step itself."""
    interpret: bool = False
    """Run the kernels in the interpreter, on a machine without a GPU; only with --quick."""

    def run(self, command: str) -> int:
        """Run the step's commands; return the highest of their statuses.

        Raises:
            ValueError: a flag has a wrong value.
            OSError: the directory cannot be written.
        """
        expect(1 <= self.step <= len(STEPS), "--step", self.step, f"1 to {len(STEPS)}")
        expect(self.minutes > 0, "--minutes", self.minutes, "more than 0")
        expect(not self.interpret or self.quick, "--interpret", True, "--quick, the interpreter is slow")
        begun, step = time.monotonic(), STEPS[self.step - 1]
        seconds = 60 * min(LONGEST_STEP, step.minutes * self.minutes / LEASE_MINUTES)
        self.out.mkdir(parents=True, exist_ok=True)
        statuses = []
        with (self.out / LOG).open("a") as log:
            log.write(f"{command}\n")
            say(f"step {self.step}, {step.title}: up to {seconds / 60:.1f} minutes", log)
            environment = prepared_environment(self.wheels, log)
            for run, ends in zip(step.runs, ends_of(step, seconds), strict=True):
                left = begun + ends - time.monotonic()
                argv = self._argv(run, left)
                say(f"python -m {' '.join(argv)}", log)
                statuses.append(watched([sys.executable, "-m", *argv], environment, left + GRACE, log))
                say(f"status {statuses[-1]} after {time.monotonic() - begun:.0f} s", log)
                if statuses[-1] == INTERRUPTED:
                    break
        return max(statuses)

    def _argv(self, run: Run, seconds: float) -> list[str]:
        argv = [part.format(out=self.out) for part in run.argv]
        argv += [f"--minutes={max(seconds, 1) / 60:.3f}"]
        interpret = self.interpret and run.names_kernels
        flags = {"--quick": self.quick, "--interpret": interpret, "--resume": self.resume}
        return argv + [flag for flag, given in flags.items() if given]


INTERRUPTED = 130


def ends_of(step: Step, seconds: float) -> list[float]:
    """Return the seconds after the step's beginning at which each of its commands must end."""
    shares = [run.share for run in step.runs]
    return [seconds * sum(shares[: i + 1]) / sum(shares) for i in range(len(shares))]


def say(text: str, log: IO[str]) -> None:
    """Print a line and log it."""
    print(text, flush=True)
    print(text, file=log, flush=True)


def prepared_environment(wheels: Path, log: IO[str]) -> dict[str, str]:
    """Return the environment of the commands, with wheels on the path and CUDA's tools for JAX."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    if site := installed(wheels, log):
        paths.insert(0, site)
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    if root := cuda_root():
        environment["CUDA_ROOT"] = root
    return environment


def installed(wheels: Path, log: IO[str]) -> str | None:
    """Install the wheels into a new folder and return it; None if there are none."""
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        say(f"no wheels in {wheels}: the packages of this machine must do", log)
        return None
    site = Path(tempfile.gettempdir(), f"based_jax_wheels_{os.getuid()}")
    flags = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade"]
    flags += ["--disable-pip-version-check", "--root-user-action=ignore"]
    pip = [sys.executable, "-m", "pip", "install", *flags, "--target", str(site), *found]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode != 0:
        say(f"the wheels of {wheels} were not installed: {done.stderr.strip()[-500:]}", log)
    return str(site)


def cuda_root() -> str | None:
    """Return the value that CUDA_ROOT must have, or None if JAX finds CUDA's tools by itself.

    JAX takes the package `nvidia.cu13` for the toolkit even if it lacks the assembler, and then passes the
    path "None" to the compiler.
    """
    if os.environ.get("CUDA_ROOT"):
        return None
    spec = None
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec("nvidia.cu13")
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders or any(Path(folder, "bin", "ptxas").exists() for folder in folders):
        return None
    assembler = shutil.which("ptxas")
    roots = [Path(assembler).resolve().parent.parent] if assembler else []
    return next((str(root) for root in [*roots, Path("/usr/local/cuda")] if (root / "bin").is_dir()), None)


def watched(command: Sequence[str], environment: dict[str, str], seconds: float, log: IO[str]) -> int:
    """Run a command, showing and logging its output; kill it and all its processes after `seconds`.

    Returns:
        Its exit status; 124 if it was killed for its time, 130 after Ctrl-C.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        start_new_session=True,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    reader = threading.Thread(target=_copy_lines, args=(process.stdout, log), daemon=True)
    reader.start()
    try:
        status = process.wait(max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        status = 124
    except KeyboardInterrupt:
        status = INTERRUPTED
        # The command saves its results.
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    reader.join(GRACE)
    return status


def _copy_lines(source: Any, log: IO[str]) -> None:
    with source:
        for line in source:
            say(line.rstrip("\n"), log)
