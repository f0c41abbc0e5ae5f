"""The studies' results in the pages are those of their files."""

import json
import math

import pytest

from based_jax.experiments.results import best, read
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


def test_losses_in_the_text():
    """The losses in training of the best runs of `mqar_tradeoff`, which the sentences around it have."""
    text = " ".join((studies.HERE / "recall.md").read_text(encoding="utf-8").split())
    rows = best(read(studies.RESULTS / "mqar" / "tradeoff" / "results.jsonl"))
    losses = {name: sorted(row["loss"] for row in rows if row["family"] == name) for name in ("H3", "Hyena")}
    low, high = (f"{loss:.1f}" for loss in losses["Hyena"])
    late = {row["family"]: f"{row['loss']:.1f}" for row in rows if row["d_model"] == 32}
    four = [late[name] for name in ("Gated DeltaNet", "Mamba", "GLA", "RWKV-7")]
    assert f"after 1,152 steps are {', '.join(four[:3])} and {four[3]} nats, where DeltaNet's is " in text
    assert f"DeltaNet's is {late['DeltaNet']}." in text
    three = [late[name] for name in ("RetNet", "BaseConv", "LongConv")]
    assert f"have not finished either ({three[0]}, {three[1]} and {three[2]})" in text
    assert {f"{loss:.1f}" for loss in losses["H3"]} == {"5.8"}
    assert f"H3 ends at 5.8 and Hyena at {low} to {high}: after 1,152 steps" in text
    assert {row["steps"] for row in rows if row["family"] != "Attention"} == {1152}
    assert 19.5 < 22_500 / 1152 < 20.5
    assert 7 < 180_000 / 24_576 < 7.5
    assert f"512 values have a loss of {math.log(512):.1f} nats" in text
    assert f"four values {math.log(4):.1f}." in text


def results(name, key):
    """Rows of a study by family and a fact."""
    rows = best(read(studies.RESULTS / "mqar" / name / "results.jsonl"))
    return {(row["family"], row[key]): row for row in rows}


def test_numbers_between_the_tables():
    """Numbers in the sentences on windows, widths and pairs."""
    text = " ".join((studies.HERE / "recall.md").read_text(encoding="utf-8").split())

    def said(form, *values):
        assert form.format(*values) in text

    def accuracies(rows, *keys):
        return [rows[key]["accuracy"] for key in keys]

    trained = read(studies.RESULTS / "mqar" / "gates" / "results.jsonl")
    hyena = {
        (row["setting"], row["learning_rate"]): row["slices"]["num_pairs"]["4"]
        for row in trained
        if row["family"] == "Hyena"
    }
    said("four times the steps ({:.3f} of 4 pairs)", hyena["d 32, 24 epochs", 0.01])
    said("twice the steps ({:.3f})", hyena["d 32, 4 epochs of 3 times the examples", 0.01])
    rates = (hyena["d 32, 6 epochs", rate] for rate in (0.003162, 0.01))
    said("learning rate ({:.3f}, where 0.01 has {:.3f})", *rates)
    said("({:.3f} at width 64), as in the paper", hyena["d 64, 6 epochs", 0.01])

    h3 = [row["slices"]["num_pairs"]["4"] for row in best(trained) if row["family"] == "H3"]
    said("H3 begins sooner at a larger rate ({:.3f} of 4 pairs", h3[2])
    said("more examples ({:.3f} after", h3[1])

    windows = results("window", "window")
    smaller = [windows["both", window] for window in (4, 8, 16, 32)]
    kept = [row["slices"]["num_pairs"]["64"] for row in smaller]
    said("the smaller windows keep {:.2f} to {:.2f}", min(kept), max(kept))
    losses = [row["loss"] for row in smaller]
    said(
        "training loss is {:.2f}, and theirs {:.2f} to {:.2f}",
        windows["both", 64]["loss"],
        min(losses),
        max(losses),
    )
    one, two = (windows[family, 64]["slices"] for family in ("both", "sliding window alone"))
    assert {pairs: round(value, 2) for pairs, value in one["num_pairs"].items()} == {
        pairs: round(value, 2) for pairs, value in two["num_pairs"].items()
    }
    said("loss is {:.1f}. After a", windows["linear attention alone", 0]["loss"])
    said("the same layer has {:.3f}", windows["both, without the window", 0]["accuracy"])

    widths = results("width", "d_model")
    attention = [widths["Attention", width] for width in (16, 32, 64)]
    for key, form in (("accuracy", "reaches {:.3f} to {:.3f}"), ("steps", "after {:,} to {:,} steps")):
        values = [row[key] for row in attention]
        said(form, min(values), max(values))
    guesses = accuracies(widths, *((family, 64) for family in ("Hyena", "RWKV-4", "BaseConv")))
    said("({:.2f} to {:.2f} at width 64)", min(guesses), max(guesses))
    for family, form, bound in (
        ("repeats", "{:.2f} at best", max),
        ("after repeats", "{:.2f} and more", min),
    ):
        said(form, bound(accuracies(widths, *((f"BaseConv, {family}", width) for width in (16, 32, 64)))))

    maps = results("feature_maps", "setting")
    hardest = {key: row["slices"]["num_pairs"]["64"] for key, row in maps.items()}
    said("ReLU recalls {:.3f} of 64 pairs", hardest["ReLU", "d 64, d' 64"])
    taylor = (hardest["Taylor", setting] for setting in ("d 64, d' 8", "d 32, d' 16"))
    said("Taylor has {:.3f} with 12 KiB and {:.3f} with 20 KiB", *taylor)
    said("loss at width 64 is {:.1f}, where", maps["AllPoly", "d 64, d' 64"]["loss"])

    pairs = results("pairs", "pairs")
    said("recalls 2 pairs ({:.3f})", *accuracies(pairs, ("RetNet", 2)))
    said("recalls 4 ({:.3f} in", *accuracies(widths, ("RetNet", 64)))
    said("falls from {:.3f} to {:.3f}", *accuracies(pairs, ("sliding window 8", 2), ("sliding window 8", 8)))
    heads = accuracies(pairs, ("Hyena, 2 heads", 4), ("Hyena", 4))
    said("with 2 heads {:.3f} of 4 pairs, without heads {:.3f}", *heads)
    said("two values ({:.3f}) in {:,} steps", *(pairs["Attention", 2][key] for key in ("accuracy", "steps")))


def test_a_stale_page_is_noticed(monkeypatch, tmp_path, capsys):
    """A number that changes in the results is out of date on the page until the command has run."""
    monkeypatch.setattr(studies, "HERE", tmp_path)
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
        assert "docs/page.md, x is not up to date: run python docs/studies.py" in capsys.readouterr().err
        assert studies.main([]) == studies.main(["--check"]) == 0
        assert f"| {accuracy:.3f} |" in page.read_text()
    assert page.read_text().startswith("a\n")
    assert page.read_text().endswith("\nb\n")
    page.write_text("no marks")
    with pytest.raises(ValueError, match="block = 'x': expected its marks in the page"):
        studies.main(["--check"])
