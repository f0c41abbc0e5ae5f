"""The studies' results in the pages are those of their files."""

import json

import pytest

from tests.docs.scripts import script

studies = script("studies")


def test_the_pages_are_up_to_date():
    assert studies.main(["--check"]) == 0


ROWS = [
    {"family": "A", "pairs": 4, "accuracy": 0.5, "state_size": 256, "d": 1},
    {"family": "A", "pairs": 8, "accuracy": 0.25, "state_size": 512, "d": 1},
    {"family": "A", "pairs": 8, "accuracy": 0.125, "state_size": 1024, "d": 2},
    {"family": "B", "pairs": 8, "accuracy": 1.0, "state_size": None, "d": 1},
]


def test_tables():
    text = studies.grid("family", "pairs")(ROWS)
    assert text.splitlines()[2:] == ["| A | 0.500 | 0.250 |", "| B |  | 1.000 |"]
    assert studies.grid("family", "pairs", where={"d": 2})(ROWS).splitlines()[2:] == ["| A | 0.125 |"]
    assert studies.ranges(ROWS[:2]).splitlines()[2] == "| A | 1 and 2 | 0.250 and 0.500 |"
    assert studies.ranges(ROWS).splitlines()[2:] == ["| A | 1 to 4 | 0.125 to 0.500 |", "| B |  | 1.000 |"]


def test_a_stale_page_is_noticed(monkeypatch, tmp_path, capsys):
    """A number that changes in the results is out of date on the page until the command has run."""
    monkeypatch.setattr(studies, "ROOT", tmp_path)
    monkeypatch.setattr(studies, "RESULTS", tmp_path)
    monkeypatch.setattr(studies, "BLOCKS", {"x": studies.Block("page.md", ".", studies.ranges)})
    page = tmp_path / "page.md"
    (tmp_path / "study.json").write_text('{"study": "x", "scale": "cpu"}')
    for accuracy in (0.5, 0.75):
        row = {**ROWS[0], "accuracy": accuracy, "job": "a", "learning_rate": 0.1, "status": "finished"}
        (tmp_path / "results.jsonl").write_text(json.dumps(row))
        if accuracy == 0.5:
            page.write_text("a\n<!-- x --><!-- /x -->\nb\n")
        assert studies.main(["--check"]) == 1
        assert "page.md, x is not up to date: run python docs/studies.py" in capsys.readouterr().err
        assert studies.main([]) == studies.main(["--check"]) == 0
        assert f"| {accuracy:.3f} |" in page.read_text()
    assert page.read_text().startswith("a\n")
    assert page.read_text().endswith("\nb\n")
    page.write_text("no marks")
    with pytest.raises(ValueError, match="block = 'x': expected its marks in the page"):
        studies.main(["--check"])
