"""How a benchmark answers a wrong flag."""

import pytest

from based_jax.command import run
from benchmarks.__main__ import PROGRAM, main


def expect_one_line(command: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr that has `message`, nothing on stdout, and exit status 2."""
    with pytest.raises(SystemExit) as stop:
        run(PROGRAM, lambda: main([command, *flags]), cached=False)
    captured = capsys.readouterr()
    assert (stop.value.code, captured.out) == (2, "")
    assert captured.err.startswith("python -m benchmarks")
    assert captured.err.count("\n") == 1
    assert message in captured.err
