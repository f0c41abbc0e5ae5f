"""Reports of a GPU machine, made up here, go into a copy of the tables and pages."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import adopt, choices, measured, trials
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.journal import SCHEMA, save
from benchmarks.gpu.sections.targets import summary
from pallas_kernels import tuning
from tests.floors import ROOT
from tests.subprocesses import run_module

H200 = "NVIDIA H200"
STEPS = "pallas_kernels/taylor_step/tuning.json"
BACKENDS = [f"pallas_kernels/{op}/backends.json" for op in choices.AXES]
PAGES = (*adopt.BLOCKS, adopt.TARGETS, "docs/kernels.md")
TABLES = [*(f"pallas_kernels/{op}/tuning.json" for op in catalog.OPS), *BACKENDS]


def report(
    benchmark: str, rows: list[dict[str, Any]], date: str = "2026-11-24", **extra: Any
) -> dict[str, Any]:
    machine = {"device": H200, "platform": "gpu", "jax": "0.11.2", "date": f"{date}T10:00:00+00:00"}
    settings = {"quick": False, "interpret": False}
    return {
        "benchmark": benchmark,
        "schema": SCHEMA,
        "complete": True,
        "command": "",
        "machine": machine,
        "settings": settings,
        "rows": rows,
        **extra,
    }


def gpu(forward: float, date: str = "2026-11-24", section: str = "forward") -> dict[str, Any]:
    row = {
        "section": section,
        "step": "B16 N32768",
        "what": "pallas",
        "status": "measured",
        "seconds": forward,
        "bound_fraction": 0.5,
        **{"batch": 16, "heads": 16, "length": 32768},
    }
    return report("gpu", [row], date, summary=summary([row]))


def tuned(ratio: float = 0.5) -> dict[str, Any]:
    (case,) = catalog.cases("taylor_step/step K16 V64 bfloat16 state float32")
    rows = []
    for candidate, seconds in zip(catalog.candidates(case)[:3], (1.0, 1.1, ratio), strict=True):
        times = {"status": "measured", "seconds": seconds, "reference_seconds": 1.0}
        rows.append({**trials.columns(candidate), **times})
    return report("tune", rows)


def compared() -> dict[str, Any]:
    sizes = {"batch": 16, "heads": 16, "length": 16384, "bound_fraction": 0.5}
    rows = [
        {
            "section": "forward",
            "step": "B16 N16384",
            "what": what,
            "status": "measured",
            "seconds": s,
            **sizes,
        }
        for what, s in (("pallas", 2.0), ("mosaic", 1.0))
    ]
    return report("gpu", rows, "2026-11-23", summary=summary(rows))


@pytest.fixture
def tree(tmp_path) -> Path:
    copy = tmp_path / "tree"
    for name in (*TABLES, *PAGES, adopt.FLOORS):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for name in BACKENDS:  # as before anything was measured
        (copy / name).write_text(tuning.as_json([]))
    for path, text in adopt.pages([], copy).items():
        path.write_text(text)
    return copy


def directory(path: Path, **reports: dict[str, Any]) -> str:
    path.mkdir()
    for name, content in reports.items():
        save(content, path / f"{name}.json")
    return str(path)


def contents(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}


def test_reports_become_results_tables_and_columns(tree, tmp_path, capsys):
    before = contents(tree)
    folder = directory(tmp_path / "out", gpu=gpu(2e-3), tune=tuned(), backends=compared())
    adopt.adopt(Path(folder), tree)
    after = contents(tree)
    written = {name for name in after if after[name] != before.get(name)}
    results = {f"benchmarks/results/h200/{name}.json" for name in ("gpu", "tune", "backends")}
    assert written - {*PAGES} == {*results, STEPS, BACKENDS[0]}
    assert capsys.readouterr().out.count("wrote ") == len(written)
    assert json.loads(after["benchmarks/results/h200/tune.json"]) == tuned()

    steps = json.loads(after[STEPS])
    assert steps[0]["device"] == "9.0"
    assert steps[0]["variant"] == tuned()["rows"][2]["variant"]
    assert steps[1:] == json.loads(before[STEPS])
    (backend,) = json.loads(after[BACKENDS[0]])
    assert backend["device"] == "9.0"
    assert backend["when"] == {"value_size": 64, "rows_and_heads": [256, 10**9], "length": [16384, 10**9]}
    for name in TABLES:
        assert tuning.as_json(json.loads(after[name])) == after[name]

    text = after[adopt.TARGETS]
    assert "| | wanted | measured, NVIDIA H200 |" in text
    assert "| forward, B 16, H 16, N 32768 | at most 2.5 ms | 2 ms |" in text
    assert "| forward, B 1, H 16, N 32768 | at most 0.3 ms | |" in text
    assert "NVIDIA H200 (`benchmarks/results/h200`): jax 0.11.2, 2026-11-24." in text

    adopt.adopt(Path(folder), tree)
    assert contents(tree) == after
    assert "wrote" not in capsys.readouterr().out


def test_later_reports_add_to_earlier_ones(tree, tmp_path):
    first = directory(tmp_path / "one", gpu_forward=gpu(2e-3, "2026-11-24"))
    again = directory(tmp_path / "two", gpu_forward_2=gpu(3e-3, "2026-11-25"))
    last = directory(tmp_path / "three", gpu_backward=gpu(9e-3, "2026-11-26", section="backward"))
    for folder in (first, again, last):
        adopt.adopt(Path(folder), tree)
    page = (tree / "benchmarks/gpu.md").read_text()
    assert "| forward, B 16, H 16, N 32768 | at most 2.5 ms | 3 ms, missed |" in page
    assert "2026-11-26" in page


def test_block_sizes_that_are_no_faster_stay(tree, tmp_path):
    before = contents(tree)
    adopt.adopt(Path(directory(tmp_path / "out", tune=tuned(0.995))), tree)
    assert {name: contents(tree)[name] for name in before} == before


def other(**changes: Any) -> dict[str, Any]:
    return tuned() | changes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(tuned())[:200], "not JSON, or cut off"),
        ("[]", "expected a report"),
        (json.dumps({"rows": []}), "expected a report"),
        (json.dumps(other(benchmark="mixers")), "a report of 'mixers'; expected gpu or tune"),
        (json.dumps(other(schema=SCHEMA + 1)), f"has schema {SCHEMA + 1}"),
        (
            json.dumps(other(settings={"quick": True, "interpret": True})),
            "the run had --quick --interpret, so",
        ),
        (
            json.dumps(other(machine={"device": "cpu", "platform": "cpu"})),
            "measured on 'cpu' .cpu., which is no GPU",
        ),
        (json.dumps(other(machine={})), "names no device"),
        (json.dumps(other(rows=[{"status": "measured"}])), "a row lacks 'op'"),
        (json.dumps(other(rows=[tuned()["rows"][2] | {"op": "fft"}])), "= 'fft': expected one of"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_report_of_a_gpu_is_refused_and_nothing_written(text, message, tree, tmp_path):
    before = contents(tree)
    folder = directory(tmp_path / "out", gpu=gpu(2e-3))
    Path(folder, "tune.json").write_text(text)
    with pytest.raises(ValueError, match=rf"tune\.json.*{message}"):
        adopt.adopt(Path(folder), tree)
    assert contents(tree) == before


def test_other_mistakes(tree, tmp_path):
    empty = directory(tmp_path / "empty")
    with pytest.raises(ValueError, match="expected a directory with reports"):
        adopt.adopt(Path(empty), tree)
    two = directory(tmp_path / "two", gpu=gpu(2e-3))
    directory(tmp_path / "two" / "more", gpu=gpu(3e-3))
    with pytest.raises(ValueError, match="no two reports of one name and device"):
        adopt.adopt(Path(two), tree)


def test_the_tables_here_follow_from_the_results_here():
    """All rows of backends, and those of block sizes that a report measured."""
    reports = measured.kept({}, ROOT)
    for path, text in adopt.tables(reports, reports, ROOT).items():
        assert path.read_text() == text, path


def test_a_rehearsal_takes_quick_runs_into_a_copy(tree, tmp_path):
    quick = gpu(2e-3)
    quick["settings"]["quick"] = True
    quick["machine"] |= {"device": "cpu", "platform": "cpu"}
    folder = directory(tmp_path / "out", gpu=quick)
    adopt.adopt(Path(folder), tree, rehearsal=True)
    assert "measured, cpu" in (tree / adopt.TARGETS).read_text()


@pytest.mark.slow
def test_from_the_interpreter_into_the_tables(tree, tmp_path):
    flags = ["--quick", "--interpret", "--minutes", "10", "--out", str(tmp_path / "out")]
    done = run_module("benchmarks", "tune", *flags)
    assert done.returncode == 0, done.stderr
    adopt.adopt(tmp_path / "out", tree, rehearsal=True)
    assert [path.name for path in (tree / "benchmarks/results/cpu").iterdir()] == ["tune.json"]
