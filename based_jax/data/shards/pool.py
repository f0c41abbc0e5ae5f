"""Encode blocks in parallel worker processes, with results in the order of the blocks."""

import contextlib
import json
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

import based_jax
from based_jax import data
from based_jax.data import shards
from based_jax.data.shards.blocks import BLOCK, Block
from based_jax.data.shards.worker import DIGEST, Encoded, receive, send

# The packages' own __init__ would import JAX and Grain: 1.4 s and 200 MB per worker.
_START = """
import sys, types
for name, path in zip(sys.argv[1:7:2], sys.argv[2:7:2]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from based_jax.data.shards.worker import main
main()
"""
_AHEAD = 2  # blocks per worker in flight: read, being encoded or not yet written
_MAX_BYTES = 64 * BLOCK  # limit of the text in flight; a single larger block is allowed


class Workers:
    """Processes that encode with the tokenizer in `directory`, as a context manager.

    They are in a process group of their own, so that Ctrl-C does not reach them; they end with their input,
    which the system closes if this process is killed.
    """

    def __init__(self, count: int, directory: Path, names: Sequence[str], dtype: np.dtype) -> None:
        packages = [
            part for module in (based_jax, data, shards) for part in (module.__name__, module.__path__[0])
        ]
        self._command = [
            sys.executable,
            "-c",
            _START,
            *packages,
            str(directory.resolve()),
            json.dumps([*names]),
        ]
        self._count, self._dtype = count, dtype
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()

    def __enter__(self) -> "Workers":
        # There is one process per core: the library's own threads would compete for them.
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        self._processes: list[subprocess.Popen[bytes]] = [
            subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                process_group=0,
            )
            for _ in range(self._count)
        ]
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="tokenize")
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()  # safe, as it has no side effects
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    cast(BinaryIO, pipe).close()

    @property
    def pids(self) -> list[int]:
        """Return the process ids."""
        return [process.pid for process in self._processes]

    def encode(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, Encoded]]:
        """Yield each block, without its text, and its encoding; few blocks are in memory at once.

        Raises:
            ValueError: see `BlockEncoder.encode`.
            OSError: a worker has ended.
        """
        pending: deque[tuple[Block, int, Future[Encoded]]] = deque()
        in_flight = 0
        for block in blocks:
            while pending and (len(pending) >= _AHEAD * self._count or in_flight + block.size > _MAX_BYTES):
                first, size, future = pending.popleft()
                in_flight -= size
                yield first, future.result()
            in_flight += block.size
            pending.append((block._replace(parts=[]), block.size, self._threads.submit(self._encode, block)))
        while pending:
            first, _, future = pending.popleft()
            yield first, future.result()

    def _encode(self, block: Block) -> Encoded:
        process = self._idle.get()
        source, target = cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout)
        try:
            parts = [(part.kind, part.name, part.number, part.sizes) for part in block.parts]
            send(source, {"parts": parts}, *(part.data for part in block.parts))
            answer = receive(target)
        except OSError:
            answer = None
        finally:
            self._idle.put(process)
        if answer is None:
            status = process.wait()
            reason = "out of memory?" if status == -9 else "its error is above"
            raise OSError(f"a worker that encodes text has ended with status {status} ({reason})")
        header, content = answer
        if "error" in header:
            raise ValueError(header["error"])
        return _encoded(header, content, self._dtype)


def _encoded(header: dict, content: bytes, dtype: np.dtype) -> Encoded:
    """Parse the arrays of a response without copying: a chromosome's tokens take half a gigabyte."""
    count, begin, arrays = header["documents"], 0, []
    for kind, size in (("<i8", count), ("<i8", count), ("?", count), ("u1", DIGEST * count), (dtype, -1)):
        arrays.append(
            np.frombuffer(content, kind, size, begin) if begin < len(content) else np.zeros(0, kind)
        )
        begin += arrays[-1].nbytes
    lengths, sizes, named, digests, tokens = arrays
    return Encoded(
        lengths, sizes, named, digests.reshape(count, DIGEST), tokens, header["skipped"], header["names"]
    )
