"""A headless Chromium, driven over its debugging pipe by messages of the DevTools protocol."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The program, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page; what it complains about is kept in `complaints`."""

    def __init__(self, to_browser: Any, from_browser: Any) -> None:
        self._write, self._read = to_browser, from_browser
        self._count = 0
        self._session: dict[str, str] = {}
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {
            "sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        }
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params, **self._session}
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        data = bytearray()
        while not data.endswith(b"\0"):
            data += (byte := self._read.read(1))
            assert byte, "the browser has gone"
        message = json.loads(data[:-1])
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(message["params"]))
        return message

    def run(self, script: str) -> Any:
        """The value of an expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, condition: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, (condition, self.run("document.body.innerText"), self.complaints)
            time.sleep(0.02)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def click(self, element: str) -> None:
        """With the mouse, in the middle of what has this id."""
        box = f"document.getElementById('{element}')"
        rectangle = self.run(
            f"{box}.scrollIntoView({{block: 'center'}}), {box}.getBoundingClientRect().toJSON()"
        )
        at = {"x": rectangle["x"] + rectangle["width"] / 2, "y": rectangle["y"] + rectangle["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def type(self, element: str, text: str) -> None:
        """Replace what is in a field."""
        self.run(f"document.getElementById('{element}').select()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.press("Backspace", 8)

    def press(self, key: str, code: int, control: bool = False) -> None:
        key_of = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 2 * control}
        text = {"text": "\r"} if key == "Enter" and not control else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key_of, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key_of)

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


_LAUNCH = """
import fcntl, os, sys
high = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(high[0], 3)  # the browser reads from 3
os.dup2(high[1], 4)  # and writes to 4
os.execv(sys.argv[3], sys.argv[3:])
"""


@contextlib.contextmanager
def browsing(program: str, profile: Path) -> Iterator[Page]:
    """A browser with a page."""
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-pipe",
    ]
    with (
        os.fdopen(to_browser, "wb", buffering=0) as write,
        os.fdopen(from_browser, "rb") as read,
        subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(from_us), str(to_us), program, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(from_us, to_us),
        ) as process,
    ):
        os.close(from_us)
        os.close(to_us)
        try:
            yield Page(write, read)
        finally:
            process.terminate()
            process.wait(20)
