"""Encode blocks in parallel worker processes, with results in the order of the blocks."""

import json
import os
import queue
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from based_jax.data.shards.blocks import BLOCK, Block
from based_jax.data.shards.worker import Encoded

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from based_jax.data.shards.worker import main
main()
"""
_THREADS = 4  # of the library per process; parsing and hashing in Python take a twentieth of a thread's time
_AHEAD = 2  # blocks per channel in flight: read, being encoded or not yet written
_MAX_BYTES = 64 * BLOCK  # limit of the text in flight; a single larger block is allowed


class Channel(NamedTuple):
    """A connection to one of the threads of a worker process that answer messages."""

    process: subprocess.Popen[bytes]
    connection: Connection


class Workers:
    """Processes that encode with the tokenizer in `directory`, as a context manager.

    They are in a process group of their own, so that Ctrl-C does not reach them; they end with their input,
    which the system closes if this process is killed.

    Args:
        count: texts that are encoded at the same time, each by a process. Threads of the tokenizers library
            are a sixth faster than its processes, so with `is_threaded` up to `_THREADS` share a process.
        directory: what `load_tokenizer` reads.
        names: documents to hold out.
        is_threaded: whether the tokenizer is a `FileTokenizer`.
    """

    def __init__(
        self, count: int, directory: Path, names: Sequence[str], *, is_threaded: bool = False
    ) -> None:
        arguments = json.dumps(sys.path), str(directory.resolve()), json.dumps([*names])
        self._command = [sys.executable, "-c", _START, *arguments]
        self._threads_of = [1] * count
        if is_threaded:
            processes = -(-count // _THREADS)
            self._threads_of = [count // processes + (i < count % processes) for i in range(processes)]
        self._idle: queue.SimpleQueue[Channel] = queue.SimpleQueue()

    def __enter__(self) -> "Workers":
        self._channels = [channel for threads in self._threads_of for channel in self._start(threads)]
        for channel in self._channels:
            self._idle.put(channel)
        self._threads = ThreadPoolExecutor(len(self._channels), thread_name_prefix="tokenize")
        return self

    def _start(self, threads: int) -> list[Channel]:
        """Start a process; with a channel more than threads it receives a block while it encodes others."""
        pairs = [socket.socketpair() for _ in range(threads + (threads > 1))]
        theirs = [their.fileno() for _, their in pairs]
        process = subprocess.Popen(
            [*self._command, json.dumps(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={
                **os.environ,
                "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
                "RAYON_NUM_THREADS": str(threads),
            },
            pass_fds=theirs,
            process_group=0,
        )
        channels = []
        for own, their in pairs:
            their.close()
            channels.append(Channel(process, Connection(own.detach())))
        return channels

    def __exit__(self, *error: object) -> None:
        for channel in self._channels:
            channel.process.kill()  # safe, as it has no side effects
        self._threads.shutdown(cancel_futures=True)
        for channel in self._channels:
            channel.process.wait()
            channel.connection.close()

    @property
    def pids(self) -> list[int]:
        """Return the process ids."""
        return [*dict.fromkeys(channel.process.pid for channel in self._channels)]

    def encode(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, Encoded]]:
        """Yield each block, without its text, and its encoding; few blocks are in memory at once.

        Raises:
            ValueError: see `BlockEncoder.encode`.
            OSError: a worker has ended.
        """
        pending: deque[tuple[Block, int, Future[Encoded]]] = deque()
        in_flight = 0
        for block in blocks:
            while pending and (
                len(pending) >= _AHEAD * len(self._channels) or in_flight + block.size > _MAX_BYTES
            ):
                first, size, future = pending.popleft()
                in_flight -= size
                yield first, future.result()
            in_flight += block.size
            pending.append((block._replace(parts=[]), block.size, self._threads.submit(self._encode, block)))
        while pending:
            first, _, future = pending.popleft()
            yield first, future.result()

    def _encode(self, block: Block) -> Encoded:
        channel = self._idle.get()
        try:
            channel.connection.send([part[:-1] for part in block.parts])
            for part in block.parts:
                channel.connection.send_bytes(part.data)
            answer: Encoded | ValueError = channel.connection.recv()
            if isinstance(answer, ValueError):
                raise answer
            tokens = channel.connection.recv_bytes()
        except (EOFError, OSError) as error:
            status = channel.process.wait()
            reason = "out of memory?" if status == -9 else "its error is above"
            message = f"a worker that encodes text has ended with status {status} ({reason})"
            raise OSError(message) from error
        finally:
            self._idle.put(channel)
        return answer._replace(tokens=np.frombuffer(tokens, answer.tokens.dtype))
