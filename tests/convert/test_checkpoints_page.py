"""The table of released checkpoints in docs/checkpoints.md says what the data files and the presets say."""

import re
from pathlib import Path

import based_jax as bj
from based_jax.published import table

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
FAMILIES = {"attn": "Transformer++", "based": "Based", "mamba": "Mamba"}
SIZES = {
    "attn-1b": "1.33b",
    "attn-360m": "360m",
    "based-1b": "1.35b",
    "based-360m": "363m",
    "mamba-1b": "1.32b",
    "mamba-360m": "358m",
}


def rows() -> list[list[str]]:
    lines = re.findall(r"^\| `(.*)\|$", PAGE.read_text(), flags=re.M)
    return [[cell.strip(" `") for cell in line.split("|")] for line in lines]


def test_all_released_checkpoints_are_there():
    assert sorted(row[0] for row in rows()) == sorted([*SIZES, "based-1b-50b", "mamba-1b-50b"])


def test_numbers():
    for row in rows():
        name, kind, tokens, parameters, size, ppl, ppl_ar, *scores, average = row
        preset = name.removesuffix("-50b")
        assert kind == preset.partition("-")[0]
        count = bj.param_count(bj.presets.get(preset))
        assert (parameters, size) == (f"{count:,}", f"{4 * count / 1e9:.2f} GB")
        paper = table("based", 1).row(model=FAMILIES[kind], size=f"{SIZES[preset]}/{tokens}")
        assert [float(ppl), float(ppl_ar), float(average)] == [
            paper["ppl"],
            paper["ppl_ar"],
            paper["average"],
        ]
        tasks = ("swde", "fda", "squad_completion")
        expected = paper if tokens == "50b" else table("based_readme_recall").row(checkpoint=name)
        assert [float(score) for score in scores] == [expected[task] for task in tasks]
