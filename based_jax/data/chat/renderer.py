"""Render a chat template in a separate process, which is restarted after a template exceeds its limits."""

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from based_jax.data.chat import child


class Renderer:
    """One template and the process that renders it; thread-safe, renders one conversation at a time.

    Raises:
        ImportError: jinja2 is missing.
        ValueError: a template that cannot be compiled; see also `render`.
    """

    def __init__(self, template: str) -> None:
        if importlib.util.find_spec("jinja2") is None:
            raise ImportError("chat templates need jinja2: pip install 'based-jax[chat]'")
        self._template = template
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        with self._lock:
            self._start()

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render the template with JSON-serializable variables.

        Raises:
            ValueError: the template raises an error, or needs more than `child.SECONDS` or `child.BYTES`.
        """
        with self._lock:
            if self._process is None:
                self._start()
            return self._ask(dict(variables))

    def close(self) -> None:
        """End the process; a later `render` starts another."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        # -P: do not put the script's directory first in the module search path.
        command = [sys.executable, "-P", child.__file__]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        try:
            self._ask(self._template)
        except ValueError:
            self._end()
            raise

    def _ask(self, value: Any) -> str:
        process, line = self._process, b""
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(value).encode("ascii") + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # the process has ended
            pass
        if not line.endswith(b"\n"):
            self._end()
            limits = f"{child.SECONDS} seconds and {child.BYTES >> 20} MiB"
            raise ValueError(f"the chat template was ended: expected one that needs at most {limits}")
        reply = json.loads(line)
        if "text" not in reply:  # one line, whatever message the template raised
            reason = "".join(letter if letter.isprintable() else " " for letter in reply["error"])
            raise ValueError(f"the chat template failed ({reason})")
        return reply["text"]

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with self._process:  # closes its pipes and waits for it
                pass
            self._process = None
