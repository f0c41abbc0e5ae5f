"""The papers' groups of tasks: columns, averages and tables; no lm-eval is needed."""

import pytest
from rich.console import Console

from based_jax.evals.lm_eval.report import read_metrics, suite_rows, suite_table, task_table
from based_jax.evals.lm_eval.suites import SUITES, average, read_columns
from based_jax.published import table

RESULTS = {
    "results": {
        "lambada_openai": {"perplexity,none": 21.5, "perplexity_stderr,none": 0.75, "acc,none": 0.38},
        "hellaswag": {"acc,none": 0.1, "acc_norm,none": 0.33, "acc_norm_stderr,none": 0.005},
        "piqa": {"acc,none": 0.64},
        "arc_easy": {"acc,none": 0.45},
        "arc_challenge": {"acc_norm,none": 0.24, "acc,none": 0.1},
        "winogrande": {"acc,none": 0.51, "acc_stderr,none": "N/A"},
    },
    "n-shot": {"piqa": 0},
    "n-samples": {"piqa": {"original": 9, "effective": 7}},
}


def text_of(table):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


@pytest.mark.parametrize("name", SUITES)
def test_our_average_is_the_papers(name):
    suite = SUITES[name]
    # Half a unit of the last digit printed, of the average and of its cells (Pythia's 23.8 among them).
    rounding = {"common_sense": 0.015, "superglue": 0.1}[name]
    others = [
        (row["model"], row.get("size"))
        for row in table("based", suite.table).rows
        if average(suite, row) != pytest.approx(row["average"], abs=rounding)
    ]
    # These three averages are not those of the cells that are printed beside them (53.95, 53.67, 45.29).
    slips = [("Based", "1.35b/50b"), ("Mamba", "1.32b/50b"), ("Mamba", "358m/30b")]
    assert others == (slips if name == "common_sense" else [])


def test_columns_are_the_papers():
    row = read_columns(SUITES["common_sense"], RESULTS["results"])
    assert row == pytest.approx(
        {
            "lambada_ppl": 21.5,
            "lambada": 38,
            "hellaswag": 33,
            "piqa": 64,
            "arc_easy": 45,
            "arc_challenge": 24,
            "winogrande": 51,
            "average": (38 + 33 + 64 + 45 + 24 + 51) / 6,
        }
    )
    for suite in SUITES.values():
        paper = table("based", suite.table)
        ours = [column.name for column in suite.columns]
        assert [column for column in paper.columns if column in ours] == ours


def test_the_papers_rows_have_as_many_examples():
    assert [row["shots"] for row in suite_rows(SUITES["superglue"], 5)] == [5, 5, 5]
    assert suite_rows(SUITES["superglue"], 2) == []
    assert len(suite_rows(SUITES["common_sense"], 0)) == len(table("based", 2).rows)


def test_our_row_is_above_the_papers():
    lines = text_of(suite_table(SUITES["common_sense"], RESULTS, "mine", 0)).splitlines()
    ours = next(index for index, line in enumerate(lines) if "mine" in line)
    paper = next(index for index, line in enumerate(lines) if "Transformer++" in line)
    assert ours < paper
    assert "21.50 ± 0.75" in lines[ours]
    assert "33.00 ± 0.50" in lines[ours]
    assert "±" not in lines[ours].partition("64.00")[2]
    assert "42.50" in lines[ours]


def test_any_tasks_metrics():
    found = list(
        read_metrics({"alias": "a", "sample_len": 3, "em,strict": 0.5, "acc,none": 1, "acc_stderr,none": 0.1})
    )
    assert found == [("em (strict)", 0.5, None), ("acc", 1.0, 0.1)]
    [line] = [line for line in text_of(task_table(RESULTS)).splitlines() if "piqa" in line]
    assert [cell.strip() for cell in line.split("│")[1:-1]] == ["piqa", "acc", "0.6400", "", "0", "7"]
