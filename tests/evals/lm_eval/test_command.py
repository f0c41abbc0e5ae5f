"""The command's flags, and the papers' groups of tasks: columns and averages; no lm-eval is needed."""

import sys

import pytest

from based_jax.evals.lm_eval.__main__ import PROG, SUITES, average, main, read_columns
from based_jax.published import table
from tests.commands import refused


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "tasks = None: expected names of tasks, or --suite instead"),
        (("--tasks", "a", "--suite", "superglue"), "tasks = 'a': expected names of tasks, or --suite"),
        (("--tasks", "a,,b"), "tasks = 'a,,b': expected comma-separated names"),
        (("--suite", "other"), "--suite"),
        (("--suite", "common_sense", "--num-fewshot", "5"), "num_fewshot = 5: expected 0 for common_sense"),
        (("--suite", "superglue", "--num-fewshot", "-1"), "num_fewshot = -1: expected at least 0"),
        (("--tasks", "a", "--include", "nowhere"), "include = 'nowhere': expected a folder"),
        (("--tasks", "a", "--limit", "0"), "limit = 0: expected at least 1"),
        (("--tasks", "a", "--batch-size", "0"), "batch_size = 0: expected at least 1"),
        (("--tasks", "a", "--context", "0"), "context = 0: expected at least 1"),
        (("--tasks", "a", "--metadata", "[4096]"), "metadata = '[4096]': expected a JSON object"),
    ],
)
def test_wrong_flags_are_one_line(capsys, flags, message):
    assert message in refused(PROG, main, ("--checkpoint", "x", *flags), capsys)


def test_a_missing_package_is_named(capsys, monkeypatch):
    for name in ("lm_eval", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "based_jax.evals.lm_eval.model", raising=False)
    err = refused(PROG, main, ("--checkpoint", "x", "--tasks", "piqa"), capsys)
    assert "expected the package 'lm-eval' to be installed" in err
    assert "pip install 'based-jax[lm-eval]'" in err


RESULTS = {
    "lambada_openai": {"perplexity,none": 21.5, "perplexity_stderr,none": 0.75, "acc,none": 0.38},
    "hellaswag": {"acc,none": 0.1, "acc_norm,none": 0.33, "acc_norm_stderr,none": 0.005},
    "piqa": {"acc,none": 0.64},
    "arc_easy": {"acc,none": 0.45},
    "arc_challenge": {"acc_norm,none": 0.24, "acc,none": 0.1},
    "winogrande": {"acc,none": 0.51, "acc_stderr,none": "N/A"},
}


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
    row = read_columns(SUITES["common_sense"], RESULTS)
    accuracies = {
        "lambada": 38,
        "hellaswag": 33,
        "piqa": 64,
        "arc_easy": 45,
        "arc_challenge": 24,
        "winogrande": 51,
    }
    expected = {"lambada_ppl": 21.5, **accuracies, "average": sum(accuracies.values()) / 6}
    assert row == pytest.approx(expected)
    for suite in SUITES.values():
        paper = table("based", suite.table)
        ours = [column.name for column in suite.columns]
        assert [column for column in paper.columns if column in ours] == ours
