"""What a command says while its user waits."""

import io
import sys
import threading

import pytest

from based_jax import phases
from based_jax.phases import phase


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("patience", [0, 0.001], ids=["at once", "when it lasts"])
def test_a_log_gets_one_line_of_a_phase_that_lasts(capsys, patience):
    with phase("reading [the] weights", patience=patience):
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
        assert capsys.readouterr().err == "reading [the] weights\n"
    assert capsys.readouterr().err == ""


def test_a_log_gets_nothing_of_a_phase_that_fails_at_once(capsys, monkeypatch):
    monkeypatch.setattr(phases, "PATIENCE", 60.0)
    with pytest.raises(ValueError, match="wrong"), phase("reading the weights"):
        raise ValueError("wrong")
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_a_phase_and_forgets_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with phase("reading [the] weights"):
        pass
    assert "reading [the] weights" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[1A\x1b[2K")  # up one line, and erase it
