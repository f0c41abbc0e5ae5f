"""Parts of `benchmarks.data.tokenize`: the rate of the tokenizers library alone, a run and its memory."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import tokenizers

_POLL = 0.25  # seconds between two readings of the memory
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Library:
    """`encode_batch_fast` of the tokenizers library, over all cores, on texts in memory.

    It does not read, decompress, parse, hash or write.
    """

    def __init__(self, tokenizer: Path, batches: Sequence[list[str]]) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))
        self._batches = batches
        self._next = 0

    def tokens_per_second(self, seconds: float) -> float:
        """Return the rate over at least `seconds`."""
        tokens, begin = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds:
            batch = self._batches[self._next % len(self._batches)]
            tokens += sum(map(len, self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)))
            self._next += 1
        return tokens / elapsed


class Run(NamedTuple):
    """Time and memory of a run of ``train tokenize``."""

    seconds: float
    """from the start of the process to its end, without the pauses"""
    peak_mib: float | None
    """resident memory of all its processes, shared pages counted in each; None if it is not reported"""
    alone: list[float]
    """tokens per second of the library, before the run, in each pause, and after it"""


def tokenize(arguments: Sequence[str], library: Library, every: float, seconds: float) -> Run:
    """Run ``train tokenize`` in its own process, and pause it to measure the library.

    It is stopped after every `every` seconds for `seconds`, so that both see the same noise.

    Raises:
        RuntimeError: the command has failed.
    """
    rates = [library.tokens_per_second(seconds)]
    begin, paused, peak, last = time.perf_counter(), 0.0, 0.0, time.perf_counter()
    command = [sys.executable, "-m", "train.tokenize", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            while process.poll() is None:
                peak = max(peak, sum(map(_resident_mib, _tree(process.pid))))
                if time.perf_counter() - last >= every:
                    stop = time.perf_counter()
                    with _stopped(process.pid):
                        rates.append(library.tokens_per_second(seconds))
                    last = time.perf_counter()
                    paused += last - stop
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL)
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
        elapsed = time.perf_counter() - begin - paused
        assert process.stderr is not None
        if process.returncode:
            raise RuntimeError(
                f"train.tokenize ended with status {process.returncode}: {process.stderr.read()}"
            )
    rates.append(library.tokens_per_second(seconds))
    return Run(elapsed, peak or None, rates)


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Stop a process and its descendants within the block."""
    pids = _tree(pid)
    try:
        for each in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        yield
    finally:
        for each in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


def _tree(pid: int) -> list[int]:
    """Return the process and its descendants; none without ``/proc``."""
    try:
        children = [
            int(child)
            for file in Path(f"/proc/{pid}/task").glob("*/children")
            for child in file.read_text().split()
        ]
    except OSError:
        return [pid]
    return [pid, *(found for child in children for found in _tree(child))]


def _resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB; 0 if it is not reported."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MIB
    except OSError:
        return 0.0
