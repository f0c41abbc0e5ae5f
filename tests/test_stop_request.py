"""Stop requests are answered although the main thread does not return to Python."""

import signal
import subprocess
import sys

import pytest

from tests.marks import slow_but
from tests.subprocesses import PATIENCE, environment

COMMAND = """
import contextlib, hashlib, signal, sys, threading, time
from based_jax import stop_request
from based_jax.stop_request import StopRequest
stop_request.ECHO = SECONDS
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a job in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` may run the tests
with contextlib.suppress(KeyboardInterrupt), StopRequest():
    threading.Timer(0.5, print, ["ready"], {"flush": True}).start()
    WORK
sys.exit(130)
"""

# Derives a key for hours, without a look at signals: as XLA does while it compiles.
BUSY = 'hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)'


def signal_twice(work: str, echo: float, number: signal.Signals = signal.SIGINT) -> tuple[str, str, int]:
    """Return what a process writes, after "ready", to its outputs at the second signal, and its status."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.replace("WORK", work).replace("SECONDS", str(echo))],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stderr.readline() == f"{number.name}: stopping after this step; again to stop now\n"
    process.send_signal(number)
    return *process.communicate(timeout=PATIENCE), process.returncode


@pytest.mark.release
@pytest.mark.parametrize("work", slow_but([BUSY], [BUSY, "time.sleep(1000)"]), ids=["busy", "asleep"])
def test_the_first_ctrl_c_is_reported_and_the_second_ends_the_process(work):
    stopped = "SIGINT: stopped; nothing since the last checkpoint is saved\n"
    assert signal_twice(work, 0) == ("", stopped, 128 + signal.SIGINT)


@pytest.mark.release
def test_an_echo_is_no_second_signal():
    """`timeout` sends its signal to the process, then to its group. Here it is that of a closed terminal."""
    found = signal_twice("print(sys.stdin.read() + 'saved')", 1e9, signal.SIGHUP)
    assert found == ("saved\n", "", 130)
