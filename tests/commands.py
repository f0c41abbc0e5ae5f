"""Commands in the test's own process: what a user sees of them, without the second that a process takes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from based_jax import command as flags


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


def run_here(
    prog: str,
    main: Callable[[Sequence[str]], int | None],
    argv: Sequence[object],
    capsys: pytest.CaptureFixture[str],
) -> Ended:
    """Run ``main(argv)`` as the module's last line does; `prog` is what its errors begin with."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        flags.run(prog, lambda: main([str(word) for word in argv]), cached=False)
    status = ended.value.code
    assert isinstance(status, int | None)
    return Ended(status or 0, *capsys.readouterr())


def refused(
    prog: str,
    main: Callable[[Sequence[str]], int | None],
    argv: Sequence[object],
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Return the only line that a command prints when it refuses its flags; the status must be 2."""
    ended = run_here(prog, main, argv, capsys)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1), ended
    assert ended.err.startswith(f"{prog}: ")
    return ended.err
