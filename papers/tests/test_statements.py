"""The tables of statements: every row holds, a row that does not is reported, and figures are drawn."""

import dataclasses
import importlib
import math

import pytest

from papers import statements
from papers.check import Check
from tests.floors import ROOT
from tests.marks import slow_but

COMMANDS = {name: importlib.import_module(f"papers.{name}.__main__") for name in ("based", "zoology")}
GROUPS = [(name, group) for name, command in COMMANDS.items() for group in command.GROUPS]
QUICK = [pair for pair in GROUPS if pair != ("based", "states")]  # its mixers take long to compile
GOOD = Check("Sums", "Zoology, lemma H.9", "against a sum", "N = 4", 1e-16, layers=2, layer_bound="2")
BAD = dataclasses.replace(GOOD, statement="Too few", error=0.5, parameters=1024)


@pytest.mark.parametrize("where", slow_but(QUICK, GROUPS), ids="-".join)
def test_every_row_holds(where):
    name, group = where
    rows = list(COMMANDS[name].GROUPS[group](0))
    assert [row for row in rows if not row.holds] == []
    assert len(rows) >= 6


def run(*flags, rows=(GOOD,)):
    groups = {"a": lambda seed: rows, "b": lambda seed: [GOOD]}
    return statements.run("python -m papers.zoology", groups, lambda folder: [folder / "x.png"], flags)


def test_the_table_and_the_status(capsys):
    assert run() == 0
    assert capsys.readouterr().out.count("| Sums | Zoology, lemma H.9 |") == 2
    assert run(rows=[BAD]) == 1
    found = capsys.readouterr()
    expected = "does not hold: Zoology, lemma H.9: Too few: error 5.0e-01, tolerance 1.0e-10\n"
    assert found.err.endswith(expected)
    assert found.out.count("DOES NOT HOLD") == 1
    assert run("--only", "b", rows=[BAD]) == 0
    assert run(rows=[dataclasses.replace(GOOD, error=math.nan)]) == 1


@pytest.mark.parametrize("flags", [["--only", "c"], ["--seed", "-1"], ["--figures", "nowhere"]])
def test_wrong_flags_are_named(flags):
    with pytest.raises((ValueError, SystemExit), match=r"only|seed|figures|2"):
        run(*flags)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_figures_are_drawn(name, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert COMMANDS[name].main(["--figures", str(tmp_path)]) == 0
    drawn = sorted(tmp_path.iterdir())
    assert capsys.readouterr().out.splitlines() == [*map(str, drawn)]
    assert [path.name for path in drawn] == sorted(
        path.name for path in (ROOT / "papers" / name / "figures").iterdir()
    )
