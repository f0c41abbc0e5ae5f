"""Parse flags of the project's commands and report errors: one line on stderr, exit status 2."""

import contextlib
import difflib
import io
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jax

from based_jax.compilation_cache import keep_programs

Options = TypeVar("Options")

CONSOLE = "based-jax"
"""The console command, which starts others; the process is then named for example "based-jax train lm"."""


def parse(
    options: Callable[..., Options],
    argv: Sequence[str] | None,
    *,
    prog: str,
    pairs: bool = True,
) -> Options:
    """Build `options` from flags.

    Args:
        options: dataclass whose field docstrings become the help texts.
        argv: flags; None takes the process's own.
        prog: name of the command, as in ``based-jax train lm``.
        pairs: whether a switch ``--x`` comes with its opposite, ``--no-x``.

    Raises:
        SystemExit: status 0 after --help, 2 after a wrong flag (one line on stderr).
    """
    import tyro

    keywords: dict[str, Any] = {} if pairs else {"config": (tyro.conf.FlagCreatePairsOff,)}
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(options, args=argv, prog=prog, **keywords)
    except SystemExit as exit_:
        if exit_.code not in (0, None):
            fail(prog, _message(captured.getvalue()))
        raise


def find_value(words: Sequence[str], flag: str) -> str | None:
    """Return the value of `flag` (such as "--workdir") in an unparsed command line; None if it is absent.

    As in `parse`, the value is the next word or follows an equals sign, and the last of several wins.
    """
    found = None
    for word, after in itertools.zip_longest(words, words[1:]):
        name, is_joined, value = word.partition("=")
        if name == flag:
            found = value if is_joined else after
    return found


def run(prog: str, main: Callable[[], int | None], *, cached: bool = True) -> NoReturn:
    """Run a command and exit with its status; expected errors become one line and status 2.

    The library reports bad input as ValueError, TypeError, OSError or ImportError, and JAX that it finds no
    device as AssertionError or RuntimeError; anything else is a bug and keeps its traceback. Ctrl-C ends the
    process with status 130, a closed pipe silently with 141. If `cached`, compiled programs are kept on disk.
    """
    if sys.stdout is None or sys.stderr is None:  # closed by the caller
        nowhere = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # of other encodings than UTF-8
    if cached:
        keep_programs()
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # what reads the output has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # there may be more to flush
        sys.exit(141)  # as for a process that SIGPIPE ends
    except SystemExit as exit_:
        # Rich's consoles catch a closed pipe themselves, and exit with 1.
        sys.exit(141 if isinstance(exit_.__context__, BrokenPipeError) else exit_.code)
    except (ValueError, TypeError, OSError, ImportError) as error:
        message = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        fail(prog, message)
    except (AssertionError, RuntimeError):
        if _has_device():
            raise
        platforms = os.environ.get("JAX_PLATFORMS")
        fail(prog, f"JAX_PLATFORMS = {platforms!r}: expected platforms of which JAX finds a device here")
    except KeyboardInterrupt:
        # Exit at once: the interpreter would wait for a compilation in another thread, and crash.
        print(f"{prog}: interrupted", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)
    sys.exit(status or 0)


def _has_device() -> bool:
    try:
        return bool(jax.devices())
    except (AssertionError, RuntimeError):
        return False


def fail(prog: str, message: str, status: int = 2) -> NoReturn:
    """Print `message` in one line on stderr and exit."""
    print(f"{prog}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def one_line(error: BaseException) -> str:
    """Return the kind of the error and the first line of its message, or where it was raised."""
    if message := str(error).strip().splitlines():
        return f"{type(error).__name__}: {message[0]}"
    frames = traceback.extract_tb(error.__traceback__)
    location = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + location


def _message(report: str) -> str:
    """Return the sentence inside tyro's framed report, without its title, rulers and excerpts of the help."""
    lines = [line.strip("\u2502 ") for line in report.splitlines() if line[:1] not in "\u256d\u2570"]
    if len(lines) > 1 and lines[1] and not lines[1].strip("-"):  # in ASCII: the title, and a ruler below it
        del lines[0]
    text = " ".join(line for line in lines if line.strip("\u2500- "))
    text = re.split(r" (?:Argument helptext|For full helptext)\b", " ".join(text.split()))[0]
    text = re.sub(r"(Perhaps you meant: \S+).*", r"\1", text)
    flags = [word for line in lines for word in line.split()[:1] if word.startswith("--")]
    if flags and (wrong := re.match(r"Unrecognized options: (--[^\s,=]+)", text)):
        closest = difflib.get_close_matches(wrong[1], flags, 1, cutoff=0)[0]
        text = re.sub(r"(?<=you meant: )\S+", closest, text)
    text = re.sub(r"Error parsing [A-Z]\w*[a-z]\w*: ", "", text)  # of a dataclass, not of a flag
    is_pair = re.match(r"Unrecognized options: \w+=", text) is not None
    return text + "; separate options of a mixer by colons, other pairs by commas, without spaces" * is_pair
