"""Flags of the commands of this package: one line on stderr and exit status 2 for whatever is wrong."""

import contextlib
import io
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import tyro

Options = TypeVar("Options")


def parse(options: type[Options], argv: Sequence[str] | None, prog: str) -> Options:
    """Build `options`, a dataclass whose field docstrings are the help texts; argv None: the process's.

    Raises:
        SystemExit: status 0 after --help, 2 after a wrong flag.
    """
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(options, args=argv, prog=prog)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        # The sentence inside tyro's frame, without title, rulers and excerpts of the help.
        lines = [
            line.strip("\u2502 ")
            for line in captured.getvalue().splitlines()
            if line[:1] not in "\u256d\u2570"
        ]
        text = " ".join(" ".join(line for line in lines if line.strip("\u2500 ")).split())
        fail(prog, re.split(r" (?:Argument helptext|For full helptext)\b", text)[0])


def run(prog: str, main: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its status; expected errors become one line and status 2."""
    try:
        status = main()
    except (ValueError, TypeError, OSError, ImportError) as error:
        fail(prog, str(error) or type(error).__name__)
    except KeyboardInterrupt:
        fail(prog, "interrupted", status=130)
    sys.exit(status)


def one_line(error: BaseException) -> str:
    """The kind of the error and the first line of its message, or where it was raised."""
    if message := str(error).strip().splitlines():
        return f"{type(error).__name__}: {message[0]}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + place


def fail(prog: str, message: str, status: int = 2) -> NoReturn:
    """Say `message` in one line on stderr and exit."""
    print(f"{prog}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
