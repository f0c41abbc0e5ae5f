"""The pages and pictures that scripts of docs/ write are what they would write now."""

from pathlib import Path

import pytest

from tests.docs.scripts import script

SCRIPTS = {name: script(name) for name in ("architecture", "layer_laws", "studies", "tables")}
studies, layer_laws = SCRIPTS["studies"], SCRIPTS["layer_laws"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_pages_are_up_to_date_and_stale_ones_are_noticed_and_written(name, monkeypatch, capsys):
    module, read, written = SCRIPTS[name], Path.read_text, {}
    main = module.main
    assert main(["--check"]) == 0
    if name == "tables":  # whose pages take long to write
        monkeypatch.setattr(module, "PAGES", {"mixers.md": module.mixers_page})
    elif name == "architecture":  # which reads all sources
        found = module.imports()
        monkeypatch.setattr(module, "imports", lambda: found)

    def other(path: Path, **options: str) -> str:
        text = read(path, **options)
        return text.replace("| ", "|", 1000) if path.suffix == ".md" else text

    monkeypatch.setattr(Path, "read_text", other)
    monkeypatch.setattr(Path, "write_text", lambda path, text, **_: written.setdefault(path, text))
    assert main(["--check"]) == 1
    assert f"is not up to date: run python docs/{name}.py" in capsys.readouterr().err
    assert not written
    assert main([]) == 0
    texts = {path: text for path, text in written.items() if path.suffix == ".md"}
    assert texts
    assert all("| " in text for text in texts.values())


def test_laws_that_are_broken():
    outcome = {"layer": "a", "status": "broken", "error": 0.25, "sizes": [1, 2], "detail": "the next call"}
    outcomes = [
        outcome | {"law": "split"},
        outcome | {"law": "batch", "error": None, "sizes": [3], "detail": ""},
        outcome | {"law": "packing", "status": "not checked"},
        outcome | {"law": "causality", "status": "holds"},
    ]
    text = layer_laws.text({"date": "2026-11-26", "versions": {"torch": "2"}}, *outcomes)
    assert "| a | 1 of 3 | split (1 + 2: 0.25, in the next call); batch (3: raises) |" in text


def test_tables_of_studies():
    rows = [
        {"family": "A", "pairs": 4, "accuracy": 0.5, "state_size": 256, "d": 1},
        {"family": "A", "pairs": 8, "accuracy": 0.25, "state_size": 512, "d": 1},
        {"family": "A", "pairs": 8, "accuracy": 0.125, "state_size": 1024, "d": 2},
        {"family": "B", "pairs": 8, "accuracy": 1.0, "state_size": None, "d": 1},
    ]
    text = studies.grid("family", "pairs")(rows)
    assert text.splitlines()[2:] == ["| A | 0.500 | 0.250 |", "| B |  | 1.000 |"]
    assert studies.grid("family", "pairs", where={"d": 2})(rows).splitlines()[2:] == ["| A | 0.125 |"]
    assert studies.ranges(rows[:2]).splitlines()[2] == "| A | 1 and 2 | 0.250 and 0.500 |"
    assert studies.ranges(rows).splitlines()[2:] == ["| A | 1 to 4 | 0.125 to 0.500 |", "| B |  | 1.000 |"]
    with pytest.raises(ValueError, match="block = 'x': expected its marks in the page"):
        studies.replaced("no marks", "x", "text")
