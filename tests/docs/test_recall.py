"""Sentences of papers/zoology/recall.md have the numbers of the studies' results, and no others."""

import math
import re
from collections.abc import Iterator

import pytest

from based_jax.experiments.results import best, read
from based_jax.published import number, table
from tests.docs.scripts import script

studies = script("studies")
SMALL, LARGE = "d 32, d' 8", "d 64, d' 8"


def rows_of(study):
    return read(studies.RESULTS / study / "results.jsonl")


def chosen(study, *keys):
    """Rows of a study with their best learning rate, by family and facts."""
    return {(row["family"], *(row[key] for key in keys)): row for row in best(rows_of(study))}


def filled(form, *values):
    return form.format(*values)


def tradeoff() -> Iterator[str]:
    rows = best(rows_of("mqar/tradeoff"))
    late = {row["family"]: row["loss"] for row in rows if row["d_model"] == 32}
    five = [late[name] for name in ("Gated DeltaNet", "Mamba", "GLA", "RWKV-7", "DeltaNet")]
    assert {row["steps"] for row in rows if row["family"] != "Attention"} == {1152}
    form = "losses after 1,152 steps are {:.1f}, {:.1f}, {:.1f} and {:.1f} nats, where DeltaNet's is {:.1f}."
    yield filled(form, *five)
    three = [late[name] for name in ("RetNet", "BaseConv", "LongConv")]
    yield filled("have not finished either ({:.1f}, {:.1f} and {:.1f})", *three)
    h3, hyena = (sorted(row["loss"] for row in rows if row["family"] == name) for name in ("H3", "Hyena"))
    assert round(h3[0], 1) == round(h3[1], 1)
    yield filled("H3 ends at {:.1f} and Hyena at {:.1f} to {:.1f}: after 1,152 steps", h3[0], *hyena)
    yield filled("the 512 values have a loss of {:.1f} nats", math.log(512))
    yield filled("a text's four values {:.1f}.", math.log(4))

    windows: dict[str, list[float]] = {}
    for row in rows_of("mqar/tradeoff"):
        if row["family"] == "Sliding window":
            windows.setdefault(row["setting"], []).append(row["accuracy"])
    assert max(max(two) - min(two) for two in windows.values()) <= 0.002
    yield "both learning rates, to 0.002"

    paper: dict[str, list[float]] = {}
    for row in table("based_figure_2").rows:
        paper.setdefault(str(row["model"]), []).append(number(row, "accuracy"))
    h3, hyena = paper["H3"], paper["Hyena"]
    yield filled("({} to {} and {} to {})", min(h3), max(h3), min(hyena), max(hyena))
    yield filled("Hyena has {} at width 64 and {} at 256", hyena[0], hyena[-1])

    first, again = chosen("mqar/tradeoff", "setting"), chosen("mqar/feature_maps", "setting")
    yield filled("Based with d 32 and d' 8 scored {:.3f} then", first["Based", SMALL]["accuracy"])
    yield filled("and scored {:.3f}.", again["Taylor", SMALL]["accuracy"])


def gates() -> Iterator[str]:
    of_4 = {
        (row["family"], row["setting"], row["learning_rate"]): row["slices"]["num_pairs"]["4"]
        for row in rows_of("mqar/gates")
    }
    long, more, base = "d 32, 24 epochs", "d 32, 4 epochs of 3 times the examples", "d 32, 6 epochs"
    yield filled("four times the steps ({:.3f} of 4 pairs)", of_4["Hyena", long, 0.01])
    yield filled("twice the steps ({:.3f})", of_4["Hyena", more, 0.01])
    rates = (of_4["Hyena", base, rate] for rate in (0.003162, 0.01))
    yield filled("learning rate ({:.3f}, where 0.01 has {:.3f})", *rates)
    yield filled("({:.3f} at width 64), as in the paper", of_4["Hyena", "d 64, 6 epochs", 0.01])
    yield filled("({:.3f} of 4 pairs after 1,152 steps at 0.0316)", of_4["H3", base, 0.03162])
    yield filled("more examples ({:.3f} after", of_4["H3", more, 0.01])
    yield filled("BaseConv picks one of the four values ({:.2f})", of_4["BaseConv", long, 0.01])
    yield filled("ends at {:.3f} of 4 pairs", of_4["linear attention alone", long, 0.01])
    form = "{:.3f} of 4 pairs with three times the examples, and {:.3f} with four times"
    yield filled(form, *(of_4["AllPoly", how, 0.01] for how in (more, long)))
    yield filled("two pairs an accuracy near {} is not recall", 1 / 2)
    rows = chosen("mqar/gates", "setting")
    learned = ("RWKV-7", "Gated DeltaNet", "RetNet", "GLA", "H3", "Mamba")
    assert min(rows[name, long]["slices"]["num_pairs"]["8"] for name in learned) > 0.24  # a guess: 1 / 8


def windows() -> Iterator[str]:
    rows = chosen("mqar/window", "window")
    smaller = [rows["both", window] for window in (4, 8, 16, 32)]
    kept = [row["slices"]["num_pairs"]["64"] for row in smaller]
    yield filled("the smaller windows keep {:.2f} to {:.2f}", min(kept), max(kept))
    losses = [row["loss"] for row in smaller]
    form = "training loss is {:.2f}, and theirs {:.2f} to {:.2f}"
    yield filled(form, rows["both", 64]["loss"], min(losses), max(losses))
    both, alone = (rows[family, 64]["slices"]["num_pairs"] for family in ("both", "sliding window alone"))
    assert both == pytest.approx(alone, abs=0.005)
    yield filled("loss is {:.1f}. After a", rows["linear attention alone", 0]["loss"])
    yield filled("the same layer has {:.3f}", rows["both, without the window", 0]["accuracy"])


def widths() -> Iterator[str]:
    rows = chosen("mqar/width", "d_model")
    attention = [rows["Attention", width] for width in (16, 32, 64)]
    for key, form in (("accuracy", "reaches {:.3f} to {:.3f}"), ("steps", "after {:,} to {:,} steps")):
        values = [row[key] for row in attention]
        yield filled(form, min(values), max(values))
    yield filled("one of the text's values ({})", 1 / 4)
    guesses = [rows[family, 64]["accuracy"] for family in ("Hyena", "RWKV-4", "BaseConv")]
    yield filled("({:.2f} to {:.2f} at width 64)", min(guesses), max(guesses))
    for family, form, bound in (
        ("repeats", "the key: {:.2f} at best", max),
        ("after repeats", "scores {:.2f} and more", min),
    ):
        yield filled(form, bound(rows[f"BaseConv, {family}", width]["accuracy"] for width in (16, 32, 64)))
    smallest = [row for row in table("zoology_figure_2").rows if row["length"] == 64]
    paper = [
        number(row, str(width))
        for row in smallest
        if row["model"] != "Attention"
        for width in (64, 128, 256, 512)
    ]
    yield filled("they score {:.2f} to {:.2f}", min(paper), max(paper))


def pairs() -> Iterator[str]:
    rows = chosen("mqar/pairs", "d_model", "pairs")
    found = {key: row["accuracy"] for key, row in rows.items()}
    yield filled("RetNet recalls 2 pairs ({:.3f})", found["RetNet", 32, 2])
    yield filled("recalls 4 ({:.3f} in", chosen("mqar/width", "d_model")["RetNet", 64]["accuracy"])
    yield filled("falls from {:.3f} to {:.3f}", *(found["sliding window 8", 32, count] for count in (2, 8)))
    two, eight, four = ("Hyena, 2 heads", 32), ("Hyena, 8 heads", 64), ("Hyena, 4 heads", 64)
    yield filled(
        "with 2 heads {:.3f} of 4 pairs, without heads {:.3f}", found[*two, 4], found["Hyena", 32, 4]
    )
    yield filled("({:.3f} and {:.3f}), with the same state", found[*eight, 4], found[*two, 4])
    sizes = [rows[*model, 4]["state_size"] for model in (two, eight, four)]
    assert sizes == [sizes[0], sizes[0], 2 * sizes[0]]
    yield filled("recall {:.3f}, and {:.3f} of 8 pairs", found[*four, 4], found[*four, 8])
    of_2 = [row for row in rows_of("mqar/pairs") if (row["family"], row["pairs"]) == ("Attention", 2)]
    assert {row["learning_rate"] for row in of_2} == {0.001, 0.003162, 0.01}
    yield filled("two values in {:,} steps", *{row["steps"] for row in of_2})
    yield filled("({:.3f} at best)", max(row["accuracy"] for row in of_2))
    hyena = [row for (family, _, count), row in rows.items() if family.startswith("Hyena") and count == 4]
    by_state = [round(row["accuracy"], 1) for row in sorted(hyena, key=lambda row: row["state_size"])]
    assert by_state == sorted(by_state)


def maps() -> Iterator[str]:
    rows = chosen("mqar/feature_maps", "setting")
    hardest = {key: row["slices"]["num_pairs"]["64"] for key, row in rows.items()}
    yield filled("ReLU recalls {:.3f} of 64 pairs", hardest["ReLU", "d 64, d' 64"])
    taylor = (hardest["Taylor", setting] for setting in (LARGE, "d 32, d' 16"))
    yield filled("Taylor has {:.3f} with 12 KiB and {:.3f} with 20 KiB", *taylor)
    wide = {family: row["loss"] for (family, _), row in rows.items() if row["d_model"] == 64}
    yield filled("loss at width 64 is {:.1f}", wide["AllPoly"])
    assert max(wide[name] for name in ("Taylor", "ReLU", "PosELU", "CosFormer", "Square")) < 0.5
    yield "less than 0.5"
    paper = {row["feature_map"]: row for row in table("based_figure_3").rows}
    all_poly, identity = (
        [number(paper[name], width) for width in two]
        for name, two in (("AllPoly", ("64", "128")), ("Identity", ("192", "512")))
    )
    yield filled("scores {} at width 64 and {} at 128", *all_poly)
    yield filled("ReLU has {} with 66 KiB", number(paper["ReLU"], "128"))
    yield filled("Taylor {:.2f} with 83 KiB", number(paper["Taylor"], "64"))
    yield filled("Performer stays at {}", number(paper["Performer"], "512"))
    yield filled("reaches {} at width 192 and {} at 512", *identity)


def tasks() -> Iterator[str]:
    rows = chosen("tasks", "setting")
    four_bits = rows["Sliding window", "parity, 4 bits, d 128"]["accuracy"]
    yield filled("the window nearly ({:.3f})", four_bits)
    others = (rows[name, "parity, 4 bits, d 128"]["accuracy"] for name in ("Based", "BaseConv"))
    assert max(others) < four_bits < rows["Attention", "parity, 4 bits, d 128"]["accuracy"] == 1
    yield filled("and attention did not ({:.3f})", rows["Attention", "single_query"]["accuracy"])
    later = rows["Attention", "single_query, 64 epochs"]
    yield filled("in {} steps at a rate of {}.", later["steps"], later["learning_rate"])
    yield filled("scores {} in the first three tasks and {} in `stacked`", 1 / 4, 1 / 8)
    yield filled("scores about {} where the labels are bits", 1 / 2)


def read_twice() -> Iterator[str]:
    rows = chosen("mqar/read_twice", "form")
    forms = ("once", "twice", "asked first, once", "asked first, twice")

    def accuracies(model, after=""):
        return [rows[model, form + after]["accuracy"] for form in forms]

    long = ", 40 epochs"
    two, four = (accuracies(f"Based d' {dim}", long) for dim in (2, 4))
    early_two, early_four = (accuracies(f"Based d' {dim}") for dim in (2, 4))
    form = (
        "{:.3f} after one copy, {:.3f} after two, {:.3f} with the question before one copy, and {:.3f} with"
    )
    yield filled(form, *two)
    form = "A d' of 4 has {:.3f} after one copy, and {:.3f} to {:.3f} with the other forms"
    yield filled(form, four[0], min(four[1:]), max(four[1:]))
    assert min(accuracies("Attention", long)) > 0.99
    yield filled("has {:.3f} then, and {:.3f} after 40 epochs", early_four[2], four[2])
    form = "({:.3f} after {:.3f}, and {:.3f} after {:.3f})"
    yield filled(form, four[0], early_four[0], two[0], early_two[0])
    for late, early in ((two, early_two), (four, early_four)):
        assert [after < before for after, before in zip(late, early, strict=True)] == [
            True,
            False,
            False,
            False,
        ]


def test_every_number_in_the_sentences_is_that_of_the_results():
    page = (studies.ROOT / "papers/zoology/recall.md").read_text(encoding="utf-8")
    text = page.partition("## A probe of two language models")[0]
    for written in (r"<!-- (\w+) -->.*?<!-- /\1 -->", r"!\[.*?\]\(.*?\)", r"\]\(.*?\)"):
        text = re.sub(written, "]", text, flags=re.DOTALL)
    text = " ".join(text.split())
    for study in (tradeoff, gates, windows, widths, pairs, maps, tasks, read_twice):
        for phrase in study():
            assert phrase in text, f"{study.__name__}: {phrase}"
            text = text.replace(phrase, "", 1)
    assert re.findall(r"\b\d\.\d+", text) == []
