"""Flags without tyro: the same values, names and errors as with it."""

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from based_jax import command
from benchmarks.decode.command import Decode
from benchmarks.flags import comma_list
from benchmarks.gpu.command import Gpu

parse = functools.partial(command.parse, prog="prog", pairs=False)


@dataclass(frozen=True)
class Options:
    """What the command does."""

    count: int
    """how many"""
    rate: float = 0.5
    """in 100 % per second"""
    out: Path | None = None
    names: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = ("a", "b")
    sizes: tuple[int, ...] = (64, 112)
    kind: Literal["x", "y"] | None = None
    quick: bool = False
    careful: bool = True


LINES = [
    "--count 3",
    "--count=3 --rate 2 --out here --quick --no-careful",
    "--count 3 --names c,d e --sizes 1 2 --kind y",
]


@pytest.fixture
def without_tyro(monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)


@pytest.mark.parametrize("line", LINES)
def test_the_same_values_as_with_tyro(line, monkeypatch):
    expected = parse(Options, line.split())
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert parse(Options, line.split()) == expected


@pytest.mark.parametrize("flags", [Gpu, Decode])
def test_commands_keep_their_defaults(flags, without_tyro):
    assert parse(flags, []) == flags()


def test_defaults_may_be_replaced(without_tyro):
    assert parse(Options, ["--rate", "2"], default=Options(count=7)) == Options(count=7, rate=2.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "--count"),
        ("--count x", "invalid int value: 'x'"),
        ("--count 1 --fast", "unrecognized arguments: --fast"),
        ("--count 1 --kind z", "'z'"),
        ("--count 1 --no-quick", "unrecognized arguments: --no-quick"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(line, message, without_tyro, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(Options, line.split())
    error = capsys.readouterr().err
    assert (stop.value.code, error.count("\n")) == (2, 1)
    assert error.startswith("prog: ")
    assert message in error


def test_help_has_the_fields_texts(without_tyro, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(Options, ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0
    for part in (
        "What the command does.",
        "100 % per second (default: 0.5)",
        "(default: a,b)",
        "--no-careful",
    ):
        assert part in text
