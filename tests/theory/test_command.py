"""`python -m based_jax.theory`: one table of all rows, the exit status, and the other ways to print it."""

import json
import math
from importlib import import_module
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.console import Console

from based_jax.theory import __main__ as command
from based_jax.theory import table
from based_jax.theory.check import Check
from tests.floors import ROOT

GOOD = Check("Sums", "Zoology, lemma H.9", "against a sum", "N = 4", 1e-16, layers=2, layer_bound="2")
BAD = Check("Too | few", "Based, theorem F.5", "degree * layers", "d = 3", 0.5, parameters=1024)


@pytest.fixture
def rows(monkeypatch):
    """Two groups of one row each, which a test may replace."""
    rows = {"primitives": [GOOD], "bounds": [BAD]}
    monkeypatch.setattr(command, "GROUPS", dict.fromkeys(rows, ("checks",)))
    fake = {f"based_jax.theory.{g}.checks": SimpleNamespace(checks=lambda seed, g=g: rows[g]) for g in rows}
    monkeypatch.setattr(command, "import_module", fake.__getitem__)
    return rows


def test_real_rows_hold(capsys):
    """The cheapest group, from its modules to the table."""
    assert command.main(["--only", "primitives"]) == 0
    found = capsys.readouterr()
    checks = [
        row
        for name in command.GROUPS["primitives"]
        for row in import_module(f"based_jax.theory.primitives.{name}").checks()
    ]
    assert f"primitives: {len(checks)} statements in" in found.err
    assert found.out.count(" yes ") == len(checks) > 0


def test_every_group_has_rows():
    """All folders are groups, and all modules of checks are listed, or part of one that is."""
    folder = command.Path(command.__file__).parent
    there = {(path.parent.name, path.stem) for path in folder.glob("*/*checks.py")}
    listed = {(group, name) for group, names in command.GROUPS.items() for name in names}
    assert {path.parent.name for path in folder.glob("*/__init__.py")} == set(command.GROUPS)
    assert listed <= there
    for group, name in there - listed:
        assert name in (folder / group / "checks.py").read_text()


def test_a_row_that_does_not_hold_is_reported_and_the_status_is_1(rows, capsys):
    assert command.main([]) == 1
    found = capsys.readouterr()
    expected = "does not hold: Based, theorem F.5: Too | few: error 5.0e-01, tolerance 1.0e-10\n"
    assert found.err.endswith(expected)
    assert [found.out.count(f" {answer} ") for answer in ("yes", "NO")] == [1, 1]
    assert command.main(["--only", "primitives"]) == 0
    rows["primitives"] = [Check("Not a number", "Based", "nothing", "", math.nan)]
    assert command.main(["--only", "primitives"]) == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--only", "nothing"], "only"),
        (["--seed", "-1"], "seed = -1: expected at least 0"),
        (["--json", "nowhere/rows.json"], "expected a file in an existing directory"),
        (["--figures", "nowhere"], "figures = 'nowhere': expected an existing directory"),
        (["--study", "tests"], "study = 'tests': expected a directory with study.json"),
        (["--table"], "--table"),
    ],
)
def test_wrong_flags_are_one_line_and_status_2(flags, said, capsys):
    with pytest.raises(SystemExit) as exit_:
        command.command.run(command.PROG, lambda: command.main(flags))
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(command.PROG)
    assert said in line


def test_figures_are_drawn_instead(rows, tmp_path, capsys, monkeypatch):
    assert command.main(["--figures", str(tmp_path)]) == 0
    drawn = [command.Path(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(drawn) == sorted(tmp_path.iterdir())
    assert len(drawn) == 3
    for path in drawn:
        assert path.read_bytes()[:4] == b"\x89PNG"
        assert (ROOT / "docs" / "figures" / path.name).exists()
    monkeypatch.setattr(command.plot, "missing", lambda: "no figure: it needs matplotlib")
    assert command.main(["--figures", str(tmp_path)]) == 2
    assert "it needs matplotlib" in capsys.readouterr().err


def test_json_holds_the_rows(rows, tmp_path):
    rows["primitives"] = [GOOD, Check("Not a number", "Based", "nothing", "", math.inf)]
    assert command.main(["--json", str(tmp_path / "rows.json"), "--seed", "3"]) == 1
    report = json.loads((tmp_path / "rows.json").read_text())
    assert report["seed"] == 3
    assert [(row.pop("group"), row.pop("holds")) for row in report["rows"]] == [
        ("primitives", True),
        ("primitives", False),
        ("bounds", False),
    ]
    good, infinite, bad = report["rows"]
    assert (Check(**good), Check(**bad)) == (GOOD, BAD)
    assert infinite["error"] is None


def test_markdown_is_a_table(rows, capsys):
    """Ten cells in each line, whatever stands in them."""
    command.main(["--markdown"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == table.markdown(rows).splitlines()
    assert [line.replace("\\|", "").count("|") for line in lines] == [11] * 6
    assert lines[2].startswith("| **primitives** |")
    assert lines[5].startswith(
        r"| Too \| few | Based, theorem F.5 | degree \* layers | d = 3 |  |  | 1,024 |"
    )


@pytest.mark.parametrize("width", [120, 200])
def test_no_column_is_cut(rows, width):
    """Text wraps; a terminal that is too narrow gets the smallest table."""
    long = ("word " * 14, "Zoology", "check " * 12, "size " * 12)
    rows["primitives"] = [Check(*long, error=1.0, layers=3, layer_bound="<= log2 w " * 4)]
    for console_width in (width, 60):
        out = StringIO()
        table.show(rows, Console(file=out, width=console_width))
        assert max(map(len, out.getvalue().splitlines())) <= max(console_width, 120)
        text = out.getvalue()
        assert [text.count(part) for part in ("word", "check", "log2", "…")] == [14, 12, 4, 0]
