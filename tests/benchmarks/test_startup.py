"""`python -m benchmarks startup`: a report from processes that are not started, and one that is."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.models import startup, startup_run
from tests.benchmarks.refusals import expect_one_line

PAGE = "before\n<!-- startup -->\nold\n<!-- /startup -->\nafter\n"


def test_cases_are_reported(tmp_path, monkeypatch, capsys):
    stages = {"trace": (0.5, 0.4), "lower": (0.25, 0.2), "compile": (1.0, 1.5), "run": (0.25, 0.3)}
    found = {"import": {"import": (0.75, 0.7)}}
    monkeypatch.setattr(startup, "measure", lambda case: found.get(case, stages))
    (tmp_path / "page.md").write_text(PAGE)
    files = ["--json", str(tmp_path / "startup.json"), "--markdown", str(tmp_path / "page.md")]
    assert main(["startup", "--samples", "2", *files]) == 0
    result = json.loads((tmp_path / "startup.json").read_text())
    assert result["complete"]
    assert [row["case"] for row in result["rows"]] == list(startup.CASES)
    row = result["rows"][1]
    assert (row["seconds"], row["cpu_seconds"]) == pytest.approx((2.0, 2.4))
    assert row["stages"] == {name: wall for name, (wall, _) in stages.items()}
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before\n<!-- startup -->\n")
    assert "| `jax.jit(model.init)` of `based-360m` | 2.00 | 3 | 2.40 | 0.50 | 0.25 | 1.00 | 0.25 |" in page
    assert page.endswith("<!-- /startup -->\nafter\n")
    assert "first training step" in capsys.readouterr().out


@pytest.mark.release
def test_the_import_is_measured_in_its_own_process():
    assert startup_run.measure("import")["import"][0] > 0


def test_a_failed_process_is_an_error():
    with pytest.raises(RuntimeError, match="init nothing ended with status 1"):
        startup_run.measure("init nothing")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--samples", "0"], "--samples = 0: expected at least 1"),
        (["--cases", "sleep"], "--cases = 'sleep': expected one of"),
        (["--json", "/no/such/dir/a.json"], "--json = '/no/such/dir/a.json': cannot be written"),
    ],
)
def test_bad_flags_are_one_line(flags, message, capsys):
    expect_one_line("startup", flags, message, capsys)
