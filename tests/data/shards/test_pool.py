"""Worker processes that encode blocks: nothing of an answer is lost."""

import array
import fcntl
import os
import signal
import termios
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from based_jax.data import ByteTokenizer
from based_jax.data.shards.pool import Workers
from based_jax.data.shards.worker import receive, send
from tests.patience import PATIENCE

TEXT = b"any text " * 20_000  # its tokens are more than a pipe holds


def test_an_answer_that_is_interrupted_arrives_whole(tmp_path, monkeypatch):
    """The worker is stopped while it writes, as by Ctrl-Z, and continued."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    ByteTokenizer().save(tmp_path)
    with ThreadPoolExecutor() as threads, Workers(1, tmp_path, [], np.dtype("<u2")) as pool:
        (process,) = pool._processes
        assert process.stdin is not None
        assert process.stdout is not None
        send(process.stdin, {"parts": [("texts", "a", None, [len(TEXT)])]}, TEXT)
        _wait_until_full(process.stdout.fileno())
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGCONT)
        answer = threads.submit(receive, process.stdout).result(PATIENCE)
    assert answer is not None
    header, content = answer
    assert header["documents"] == 1
    assert np.frombuffer(content[-2 * len(TEXT) :], "<u2").astype(np.uint8).tobytes() == TEXT


def _wait_until_full(pipe: int) -> None:
    """Wait until a pipe has taken bytes, and takes no more."""
    before, now = array.array("i", [0]), array.array("i", [0])
    deadline = time.monotonic() + PATIENCE
    while not (0 < before[0] == now[0]):
        assert time.monotonic() < deadline
        before[0] = now[0]
        time.sleep(0.2)
        fcntl.ioctl(pipe, termios.FIONREAD, now)
