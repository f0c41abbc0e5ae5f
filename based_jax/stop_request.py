"""Turn stop requests (Ctrl-C, SIGTERM, a closed terminal) into a flag that a loop reads between two steps."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

ECHO = 1.0  # seconds after the first signal in which another one is its echo: `timeout` sends each twice
PATIENCE = 1.0  # seconds that the main thread has to end by itself after the second signal

_CLEAR_LINE, _SHOW_CURSOR = "\r\x1b[2K", "\x1b[?25h"


def stop_signals() -> list[signal.Signals]:
    """Return SIGINT, SIGTERM and, unless `nohup` has it ignored, SIGHUP."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


class StopRequest:
    """While active, the first of `stop_signals` sets `signal`, the second ends the process.

    Python runs signal handlers between two instructions of the main thread, which may be minutes away while
    XLA compiles or a step runs. So another thread reports the first signal as soon as it arrives, and on the
    second ends the process, unless the main thread, which it interrupts, has done so by then. A signal within
    `ECHO` seconds of the first one does not count.

    Must be entered in the main thread. `after` and `lost` end the messages of the first and second signal.
    """

    def __init__(
        self, after: str = "this step", lost: str = "nothing since the last checkpoint is saved"
    ) -> None:
        self._after, self._lost = after, lost
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._left = threading.Event()
        self._ends = False

    def __enter__(self) -> "StopRequest":
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in stop_signals():
            self._before[number] = signal.signal(number, self._receive)
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._answer, name="stop-request", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._left.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._writer.close()  # the thread then reads the end of the stream
        self._thread.join()
        self._reader.close()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._ends:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number)

    def _answer(self) -> None:
        """Report the first signal, and make sure that the second one ends the process."""
        first: float | None = None
        while byte := self._reader.recv(1):
            number = byte[0]
            if number not in self._before:
                continue
            name = signal.Signals(number).name
            if first is None:
                first = time.monotonic()
                _report(f"{name}: stopping after {self._after}; again to stop now")
            elif time.monotonic() > first + ECHO:
                _report(f"{name}: stopped; {self._lost}")
                self._ends = True
                signal.pthread_kill(self._main, number)
                if not self._left.wait(PATIENCE):
                    os._exit(128 + number)
                return


def _report(text: str) -> None:
    """Write a line to standard error without Python's buffers and locks, replacing a progress bar there."""
    before = _CLEAR_LINE + _SHOW_CURSOR if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError):  # closed, or a pipe whose reader has ended
        os.write(2, f"{before}{text}\n".encode())
