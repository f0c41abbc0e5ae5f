"""The table of other libraries' layers is that of the measured numbers."""

import json

from tests.docs.scripts import script

layer_laws = script("layer_laws")


def test_the_page_is_up_to_date():
    assert layer_laws.main(["--check"]) == 0


def test_a_stale_page_is_noticed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(layer_laws, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(layer_laws, "NUMBERS", tmp_path / "numbers.json")
    outcome = {"layer": "a", "status": "broken", "error": 0.25, "sizes": [1, 2], "detail": "the next call"}
    outcomes = [
        outcome | {"law": "split"},
        outcome | {"law": "batch", "error": None, "sizes": [3], "detail": ""},
        outcome | {"law": "packing", "status": "not checked"},
        outcome | {"law": "causality", "status": "holds"},
    ]
    facts = {"date": "2026-11-26", "versions": {"torch": "2"}}
    layer_laws.NUMBERS.write_text(json.dumps([facts, *outcomes]))
    layer_laws.PAGE.write_text("<!-- layer laws --><!-- /layer laws -->")
    assert layer_laws.main(["--check"]) == 1
    assert "page.md is not up to date: run python docs/layer_laws.py" in capsys.readouterr().err
    assert layer_laws.main([]) == layer_laws.main(["--check"]) == 0
    row = "| a | 1 of 3 | split (1 + 2: 0.25, in the next call); batch (3: raises) |"
    assert row in layer_laws.PAGE.read_text()
