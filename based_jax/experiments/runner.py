"""Run the jobs of a study as processes, as many at once as there are slots; record each once.

A failed job is recorded with the end of its output, and the others go on. A signal stops the trainers, which
save, and the next call resumes them. A slot is an accelerator, or a share of the CPU's cores.
"""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from based_jax.directory_lock import sole_writer
from based_jax.experiments.job import Job
from based_jax.experiments.results import FAILED, Results, Row, read
from based_jax.stop_request import stop_signals

ON_CPU = 2
"""Processes at a time on a CPU: small models leave much of a second core idle, and compiling most of it."""

_STOPPED = {sign for number in (signal.SIGINT, signal.SIGTERM) for sign in (128 + number, -number)}
"""Exit statuses of a trainer that a signal stopped or, while it started, ended: the next call trains it."""

_PROBE = "import jax; print(jax.default_backend(), jax.local_device_count())"


@dataclass(frozen=True)
class Slot:
    """The resources of one process at a time."""

    name: str
    environment: Mapping[str, str]  # added to the process's own


class Runner:
    """Run jobs, one process in each of the slots, in folders below out/runs.

    `ended` is called with each job that has ended and its rows, from one thread at a time. `trainer` starts
    the command lines; default: the job's own.
    """

    def __init__(
        self,
        out: Path,
        results: Results,
        slots: Sequence[Slot],
        ended: Callable[[Job, list[Row]], None],
        trainer: Sequence[str] | None = None,
    ):
        self.out, self.results, self.ended, self.trainer = out, results, ended, trainer
        self._slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for slot in slots:
            self._slots.put(slot)
        self.workers = len(slots)
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[Any]] = set()
        self._stopping = False

    def run(self, jobs: Sequence[Job]) -> bool:
        """Train the jobs without a result; return False if `stop`, or a signal to a trainer, stopped some.

        DirectoryInUse: a trainer of a killed study still works on one of the jobs.
        """
        pending = [job for job in jobs if not self.results.has(job)]
        for job in pending:
            if self._workdir(job).exists():
                with sole_writer(self._workdir(job)):
                    pass
        with ThreadPoolExecutor(self.workers) as pool:
            for future in [pool.submit(self._one, job) for job in pending]:
                future.result()
        return all(map(self.results.has, jobs))

    def stop(self) -> None:
        """Make the trainers save and end, and start no more; safe in a signal handler."""
        self._stopping = True
        for process in list(self._processes):
            process.send_signal(signal.SIGINT)

    def _one(self, job: Job) -> None:
        if self._stopping:
            return
        slot = self._slots.get()
        try:
            workdir = self._workdir(job)
            workdir.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            status = self._process(job, workdir, slot)
            seconds = time.perf_counter() - began
        finally:
            self._slots.put(slot)
        if status and (self._stopping or status in _STOPPED):
            return
        records = read(workdir / "results.jsonl") if status == 0 else []
        if not records:
            log = (workdir / "log.txt").read_text(encoding="utf-8", errors="replace")
            lines = [line.strip() for line in log.splitlines() if line.strip()]
            words = lines[-1][-300:] if lines else "no output"
            if status < 0:
                words = f"ended by {signal.Signals(-status).name}, after: {words}"
            records = [{"status": FAILED, "exit_status": status, "error": words, "seconds": seconds}]
        shutil.rmtree(workdir / "checkpoints", ignore_errors=True)
        with self._lock:
            self.results.add(job, records)
            self.ended(job, self.results.of(job))

    def _workdir(self, job: Job) -> Path:
        return self.out / "runs" / job.name

    def _process(self, job: Job, workdir: Path, slot: Slot) -> int:
        """Return the exit status. A process has its own session, so a terminal's Ctrl-C does not reach it."""
        options: Any = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "start_new_session": True}
        options["env"] = {**os.environ, **slot.environment}
        with (workdir / "log.txt").open("ab") as log:
            process = subprocess.Popen(job.command(workdir, self.trainer), stdout=log, **options)
            self._processes.add(process)
            try:
                if self._stopping:  # `stop` was called between the two lines above
                    process.send_signal(signal.SIGINT)
                return process.wait()
            finally:
                self._processes.discard(process)


@contextlib.contextmanager
def stopping(runner: Runner) -> Iterator[list[signal.Signals]]:
    """Within the block, the `stop_signals` stop the runner; they are appended to the list."""
    received: list[signal.Signals] = []

    def stop(number: int, frame: Any) -> None:
        received.append(signal.Signals(number))
        runner.stop()

    before = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def find_slots(count: int | None) -> list[Slot]:
    """Return `count` slots for processes; if None, one for each accelerator, or two on a CPU.

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
