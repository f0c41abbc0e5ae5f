"""The numbers in the sentences of docs/recall.md are those of the studies' results, and no others stand there."""

import math
import re
from collections.abc import Iterator

from based_jax.experiments.results import best, read
from based_jax.published import number, table
from tests.docs.scripts import script

studies = script("studies")


def of(name, *keys):
    """Rows of a study with their best learning rate, by family and facts."""
    rows = best(read(studies.RESULTS / name / "results.jsonl"))
    return {(row["family"], *(row[key] for key in keys)): row for row in rows}


def tradeoff() -> Iterator[str]:
    rows = best(read(studies.RESULTS / "mqar/tradeoff" / "results.jsonl"))
    late = {row["family"]: f"{row['loss']:.1f}" for row in rows if row["d_model"] == 32}
    four = [late[name] for name in ("Gated DeltaNet", "Mamba", "GLA", "RWKV-7")]
    assert {row["steps"] for row in rows if row["family"] != "Attention"} == {1152}
    yield f"losses after 1,152 steps are {', '.join(four[:3])} and {four[3]} nats, where DeltaNet's is {late['DeltaNet']}."
    yield "have not finished either ({}, {} and {})".format(
        *(late[name] for name in ("RetNet", "BaseConv", "LongConv"))
    )
    losses = {name: sorted(row["loss"] for row in rows if row["family"] == name) for name in ("H3", "Hyena")}
    assert {f"{loss:.1f}" for loss in losses["H3"]} == {"5.8"}
    yield "H3 ends at 5.8 and Hyena at {:.1f} to {:.1f}: after 1,152 steps".format(*losses["Hyena"])
    yield f"512 values have a loss of {math.log(512):.1f} nats, guesses among a text's four values {math.log(4):.1f}."
    every = read(studies.RESULTS / "mqar/tradeoff" / "results.jsonl")
    windows = {}
    for row in every:
        if row["family"] == "Sliding window":
            windows.setdefault(row["setting"], []).append(row["accuracy"])
    assert max(max(two) - min(two) for two in windows.values()) <= 0.002
    yield "both learning rates, to 0.002"
    paper = {}
    for row in table("based_figure_2").rows:
        paper.setdefault(row["model"], []).append(number(row, "accuracy"))
    h3, hyena = paper["H3"], paper["Hyena"]
    yield f"({min(h3)} to {max(h3)} and {min(hyena):.2f} to {max(hyena)})"
    yield f"Hyena has {hyena[0]} at width 64 and {hyena[-1]} at 256"
    again = {
        (row["setting"], row["learning_rate"]): row["accuracy"] for row in every if row["family"] == "Based"
    }
    yield f"Based with d 32 and d' 8 scored {again["d 32, d' 8", 0.01]:.3f} then"
    maps = of("mqar/feature_maps", "setting")
    yield f"and scored {maps['Taylor', "d 32, d' 8"]['accuracy']:.3f}."


def gates() -> Iterator[str]:
    trained = read(studies.RESULTS / "mqar/gates" / "results.jsonl")
    of_4 = {
        (row["family"], row["setting"], row["learning_rate"]): row["slices"]["num_pairs"]["4"]
        for row in trained
    }
    yield "four times the steps ({:.3f} of 4 pairs)".format(of_4["Hyena", "d 32, 24 epochs", 0.01])
    yield "twice the steps ({:.3f})".format(of_4["Hyena", "d 32, 4 epochs of 3 times the examples", 0.01])
    rates = (of_4["Hyena", "d 32, 6 epochs", rate] for rate in (0.003162, 0.01))
    yield "learning rate ({:.3f}, where 0.01 has {:.3f})".format(*rates)
    yield "({:.3f} at width 64), as in the paper".format(of_4["Hyena", "d 64, 6 epochs", 0.01])
    yield "H3 begins sooner at a larger rate ({:.3f} of 4 pairs after 1,152 steps at 0.0316)".format(
        of_4["H3", "d 32, 6 epochs", 0.03162]
    )
    yield "more examples ({:.3f} after".format(of_4["H3", "d 32, 4 epochs of 3 times the examples", 0.01])
    yield "BaseConv picks one of the four values ({:.2f})".format(of_4["BaseConv", "d 32, 24 epochs", 0.01])
    longest = of("mqar/gates", "setting")
    yield "ends at {:.3f} of 4 pairs".format(
        longest["linear attention alone", "d 32, 24 epochs"]["slices"]["num_pairs"]["4"]
    )
    six = ("RWKV-7", "Gated DeltaNet", "RetNet", "GLA", "H3", "Mamba")
    assert all(longest[name, "d 32, 24 epochs"]["slices"]["num_pairs"]["8"] > 2 / 8 - 0.001 for name in six)


def windows() -> Iterator[str]:
    rows = of("mqar/window", "window")
    smaller = [rows["both", window] for window in (4, 8, 16, 32)]
    kept = [row["slices"]["num_pairs"]["64"] for row in smaller]
    yield f"the smaller windows keep {min(kept):.2f} to {max(kept):.2f}"
    losses = [row["loss"] for row in smaller]
    yield f"training loss is {rows['both', 64]['loss']:.2f}, and theirs {min(losses):.2f} to {max(losses):.2f}"
    one, two = (rows[family, 64]["slices"]["num_pairs"] for family in ("both", "sliding window alone"))
    assert {key: round(value, 2) for key, value in one.items()} == {
        key: round(value, 2) for key, value in two.items()
    }
    yield f"loss is {rows['linear attention alone', 0]['loss']:.1f}. After a"
    yield f"the same layer has {rows['both, without the window', 0]['accuracy']:.3f}"


def widths() -> Iterator[str]:
    rows = of("mqar/width", "d_model")
    attention = [rows["Attention", width] for width in (16, 32, 64)]
    for key, form in (("accuracy", "reaches {:.3f} to {:.3f}"), ("steps", "after {:,} to {:,} steps")):
        values = [row[key] for row in attention]
        yield form.format(min(values), max(values))
    yield f"one of the text's values ({1 / 4})"
    guesses = [rows[family, 64]["accuracy"] for family in ("Hyena", "RWKV-4", "BaseConv")]
    yield f"({min(guesses):.2f} to {max(guesses):.2f} at width 64)"
    filters = {
        family: [rows[f"BaseConv, {family}", width]["accuracy"] for width in (16, 32, 64)]
        for family in ("repeats", "after repeats")
    }
    yield f"{max(filters['repeats']):.2f} at best"
    yield f"scores {min(filters['after repeats']):.2f} and more"
    paper = [number(row, str(width)) for row in smallest() for width in (64, 128, 256, 512)]
    yield f"they score {min(paper):.2f} to {max(paper):.2f}"


def pairs() -> Iterator[str]:
    rows = of("mqar/pairs", "d_model", "pairs")
    found = {key: f"{row['accuracy']:.3f}" for key, row in rows.items()}
    yield f"RetNet recalls 2 pairs ({found['RetNet', 32, 2]})"
    yield "recalls 4 ({:.3f} in".format(of("mqar/width", "d_model")["RetNet", 64]["accuracy"])
    window = [found["sliding window 8", 32, count] for count in (2, 8)]
    yield "falls from {} to {}".format(*window)
    yield f"2 heads {found['Hyena, 2 heads', 32, 4]} of 4 pairs, without heads {found['Hyena', 32, 4]}."
    yield f"({found['Hyena, 8 heads', 64, 4]} and {found['Hyena, 2 heads', 32, 4]}), with the same state"
    same, other = (rows[key]["state_size"] for key in (("Hyena, 8 heads", 64, 4), ("Hyena, 2 heads", 32, 4)))
    assert 2 * same == 2 * other == rows["Hyena, 4 heads", 64, 4]["state_size"]
    yield f"recall {found['Hyena, 4 heads', 64, 4]}, and {found['Hyena, 4 heads', 64, 8]} of 8 pairs"
    attention = rows["Attention", 32, 2]
    yield f"two values ({attention['accuracy']:.3f}) in {attention['steps']:,} steps"
    by_state = sorted(
        (row["state_size"], row["accuracy"])
        for (family, _, count), row in rows.items()
        if family.startswith("Hyena") and count == 4
    )
    accuracies = [round(accuracy, 1) for _, accuracy in by_state]
    assert accuracies == sorted(accuracies)


def maps() -> Iterator[str]:
    rows = of("mqar/feature_maps", "setting")
    hardest = {key: row["slices"]["num_pairs"]["64"] for key, row in rows.items()}
    yield f"ReLU recalls {hardest['ReLU', "d 64, d' 64"]:.3f} of 64 pairs"
    taylor = [hardest["Taylor", setting] for setting in ("d 64, d' 8", "d 32, d' 16")]
    yield "Taylor has {:.3f} with 12 KiB and {:.3f} with 20 KiB".format(*taylor)
    yield f"loss at width 64 is {rows['AllPoly', "d 64, d' 64"]['loss']:.1f}"
    recalling = ("Taylor", "ReLU", "PosELU", "CosFormer", "Square")
    assert (
        max(row["loss"] for (family, _), row in rows.items() if family in recalling and row["d_model"] == 64)
        < 0.5
    )
    yield "less than 0.5"
    paper = {row["feature_map"]: row for row in table("based_figure_3").rows}
    all_poly = (number(paper["AllPoly"], width) for width in ("64", "128"))
    yield "scores {} at width 64 and {} at 128".format(*all_poly)
    yield f"ReLU has {number(paper['ReLU'], '128')} with 66 KiB"
    yield f"Taylor {number(paper['Taylor'], '64'):.2f} with 83 KiB"
    identity = (number(paper["Identity"], width) for width in ("192", "512"))
    yield f"Performer stays at {number(paper['Performer'], '512')}"
    yield "reaches {} at width 192 and {} at 512".format(*identity)
