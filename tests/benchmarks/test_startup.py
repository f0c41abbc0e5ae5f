"""`python -m benchmarks startup`: a report from processes that are not started, and one that is."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.models import startup, startup_run


def test_cases_are_reported(tmp_path, monkeypatch, capsys):
    stages = {"trace": (0.5, 0.4), "lower": (0.25, 0.2), "compile": (1.0, 1.5), "run": (0.25, 0.3)}
    found = {"import": {"import": (0.75, 0.7)}}
    monkeypatch.setattr(startup, "measure", lambda case: found.get(case, stages))
    assert main(["startup", "--samples", "2", "--json", str(tmp_path / "startup.json")]) == 0
    result = json.loads((tmp_path / "startup.json").read_text())
    assert result["complete"]
    assert [row["case"] for row in result["rows"]] == list(startup.CASES)
    row = result["rows"][1]
    assert (row["seconds"], row["cpu_seconds"]) == pytest.approx((2.0, 2.4))
    assert row["stages"] == {name: wall for name, (wall, _) in stages.items()}
    cells = "| `jax.jit(model.init)` of `based-360m` | 2.00 | 3 | 2.40 | 0.50 | 0.25 | 1.00 | 0.25 |"
    assert cells in startup.text(result)
    assert "first training step" in capsys.readouterr().out


@pytest.mark.release
def test_the_import_is_measured_in_its_own_process():
    assert startup_run.measure("import")["import"][0] > 0
    with pytest.raises(RuntimeError, match="init nothing ended with status 1"):
        startup_run.measure("init nothing")
