"""The command's flags; no lm-eval is needed."""

import sys

import pytest

from based_jax.evals.lm_eval.__main__ import PROG, main
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
