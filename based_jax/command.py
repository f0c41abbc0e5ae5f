"""How every command of the project parses its flags and reports errors: one line on stderr, exit status 2."""

import contextlib
import io
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import tyro

Options = TypeVar("Options")


def parse(
    options: Callable[..., Options],
    argv: Sequence[str] | None,
    *,
    prog: str,
    default: Options | None = None,
) -> Options:
    """Build `options` (a dataclass) from flags.

    Args:
        options: dataclass whose field docstrings become the help texts.
        argv: flags; None takes the process's own.
        prog: name of the command, as in ``python -m train.lm``.
        default: values of the flags that are not given, instead of the dataclass's own.

    Raises:
        SystemExit: status 0 after --help, 2 after a wrong flag (one line on stderr).
    """
    keywords: dict[str, Any] = {} if default is None else {"default": default}
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(options, args=argv, prog=prog, **keywords)
    except SystemExit as exit_:
        if exit_.code not in (0, None):
            fail(prog, _message(captured.getvalue()))
        raise


def run(prog: str, main: Callable[[], int | None]) -> NoReturn:
    """Run a command and exit with its status; expected errors become one line and status 2.

    ValueError, TypeError, OSError and ImportError are how the library reports bad input; anything else
    is a bug and keeps its traceback.
    """
    try:
        status = main()
    except (ValueError, TypeError, OSError, ImportError) as error:
        fail(prog, str(error) or type(error).__name__)
    except KeyboardInterrupt:
        fail(prog, "interrupted", status=130)
    sys.exit(status or 0)


def fail(prog: str, message: str, status: int = 2) -> NoReturn:
    """Say `message` in one line on stderr and exit."""
    print(f"{prog}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _message(report: str) -> str:
    """The sentence inside tyro's framed report, without its title, rulers and excerpts of the help."""
    lines = [line.strip("\u2502 ") for line in report.splitlines() if line[:1] not in "\u256d\u2570"]
    text = " ".join(line for line in lines if line.strip("\u2500 "))
    text = re.split(r" (?:Argument helptext|For full helptext)\b", " ".join(text.split()))[0]
    return re.sub(r"(Perhaps you meant: \S+).*", r"\1", text)
