"""Reports of a GPU machine, made up here, go into a copy of the tables and pages."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import adopt, choices, measured
from benchmarks.gpu.cases import catalog
from benchmarks.gpu.journal import SCHEMA, save
from benchmarks.gpu.sections import tune
from benchmarks.gpu.sections.targets import summary
from pallas_kernels import tuning
from tests.floors import ROOT

H200 = "NVIDIA H200"
STEPS = "pallas_kernels/taylor_step/tuning.json"
BACKENDS = [f"pallas_kernels/{op}/backends.json" for op in choices.AXES]
PAGES = {*adopt.BLOCKS, adopt.TARGETS, "docs/kernels.md"}
TABLES = [*(f"pallas_kernels/{op}/tuning.json" for op in catalog.OPS), *BACKENDS]


def gpu(rows: list[dict[str, Any]], date: str = "2026-11-24") -> dict[str, Any]:
    machine = {"device": H200, "platform": "gpu", "jax": "0.11.2", "date": f"{date}T10:00:00+00:00"}
    settings = {"quick": False, "interpret": False}
    facts = {"benchmark": "gpu", "schema": SCHEMA, "complete": True, "command": ""}
    return {**facts, "machine": machine, "settings": settings, "rows": rows, "summary": summary(rows)}


def timed(what: str, seconds: float, section: str = "forward", length: int = 32768) -> dict[str, Any]:
    row = {"section": section, "step": f"B16 N{length}", "what": what, "status": "measured"}
    return {**row, "seconds": seconds, "bound_fraction": 0.5, "batch": 16, "heads": 16, "length": length}


def tuned(ratio: float = 0.5) -> list[dict[str, Any]]:
    """Rows of three variants, of which the last takes `ratio` of the time of the first."""
    (case,) = catalog.cases("taylor_step/step K16 V64 bfloat16 state float32")
    ((name, cases), *_) = tune.batches([case.candidates()])
    rows = []
    for candidate, seconds in zip(tune._rows(cases[:3], None), (1.0, 1.1, ratio), strict=True):
        row = {"section": "tune", "step": name, "what": candidate.name, "status": "measured"}
        rows.append({**row, "seconds": seconds, "ratio_to_first": seconds, **candidate.facts})
    return rows


@pytest.fixture
def tree(tmp_path) -> Path:
    copy = tmp_path / "tree"
    for name in (*TABLES, *PAGES, adopt.FLOORS):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for name in BACKENDS:  # as before anything was measured
        (copy / name).write_text(tuning.as_json([]))
    adopt.adopt(None, copy)
    return copy


def directory(path: Path, **reports: dict[str, Any]) -> Path:
    path.mkdir()
    for name, content in reports.items():
        save(content, path / f"{name}.json")
    return path


def contents(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}


def test_reports_become_results_tables_and_columns(tree, tmp_path, capsys):
    before = contents(tree)
    capsys.readouterr()
    backends = [timed("pallas", 2.0, length=16384), timed("mosaic", 1.0, length=16384)]
    reports = {
        "gpu": gpu([timed("pallas", 2e-3)]),
        "tune": gpu(tuned()),
        "backends": gpu(backends, "2026-11-23"),
    }
    folder = directory(tmp_path / "out", **reports)
    adopt.adopt(folder, tree)
    after = contents(tree)
    written = {name for name in after if after[name] != before.get(name)}
    results = {f"benchmarks/results/h200/{name}.json" for name in reports}
    assert written - PAGES == {*results, STEPS, BACKENDS[0]}
    assert capsys.readouterr().out.count("wrote ") == len(written)

    steps = json.loads(after[STEPS])
    assert steps[0]["device"] == "9.0"
    assert steps[0]["variant"] == tuned()[2]["variant"]
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

    adopt.adopt(folder, tree)
    assert contents(tree) == after
    assert "wrote" not in capsys.readouterr().out


def test_later_reports_add_to_earlier_ones(tree, tmp_path):
    first = gpu([timed("pallas", 2e-3)], "2026-11-24")
    again = gpu([timed("pallas", 3e-3)], "2026-11-25")
    last = gpu([timed("pallas", 9e-3, "backward")], "2026-11-26")
    peers = ("fla_parallel_based", 4e-3), ("fla_fused_chunk_based", 3e-3), ("pallas", 1e-3)
    at_8k = {"step": "forward", "batch": 4, "length": 8192}
    beside = gpu([timed(what, seconds, "torch") | at_8k for what, seconds in peers])
    reports = {"one": first, "two": again, "three": last, "beside": beside | {"benchmark": "timings"}}
    for name, content in reports.items():
        adopt.adopt(directory(tmp_path / name, **{name: content}), tree)
    page = (tree / adopt.TARGETS).read_text()
    assert "| forward, B 16, H 16, N 32768 | at most 2.5 ms | 3 ms, missed |" in page
    assert "best of flash-linear-attention over ours | at least 2 | 3 |" in page
    assert "2026-11-26" in page


def test_block_sizes_that_are_no_faster_stay(tree, tmp_path):
    adopt.adopt(directory(tmp_path / "out", tune=gpu(tuned(0.995))), tree)
    assert (tree / STEPS).read_text() == (ROOT / STEPS).read_text()


REFUSED = [
    (json.dumps(gpu([]))[:200], "not JSON, or cut off"),
    ("[]", "expected a report"),
    (json.dumps({"rows": []}), "expected a report"),
    *(
        (json.dumps(gpu([]) | changes), message)
        for changes, message in (
            ({"benchmark": "mixers"}, "a report of 'mixers'; expected gpu or timings"),
            ({"schema": SCHEMA + 1}, f"has schema {SCHEMA + 1}"),
            ({"settings": {"quick": True, "interpret": True}}, "the run had --quick --interpret, so"),
            ({"machine": {"device": "cpu", "platform": "cpu"}}, "measured on 'cpu' .cpu., which is no GPU"),
            ({"machine": {}}, "names no device"),
            ({"rows": [{"section": "tune", "status": "measured"}]}, "a row lacks "),
            ({"rows": [tuned()[2] | {"op": "fft"}]}, "= 'fft': expected one of"),
        )
    ),
]


def test_what_is_no_report_of_a_gpu_is_refused_and_nothing_written(tree, tmp_path):
    before = contents(tree)
    folder = directory(tmp_path / "out", gpu=gpu([timed("pallas", 2e-3)]))
    for text, message in REFUSED:
        (folder / "tune.json").write_text(text)
        with pytest.raises(ValueError, match=rf"tune\.json.*{message}"):
            adopt.adopt(folder, tree)
    (folder / "tune.json").unlink()
    directory(folder / "more", gpu=gpu([timed("pallas", 3e-3)]))
    with pytest.raises(ValueError, match="no two reports of one name and device"):
        adopt.adopt(folder, tree)
    assert contents(tree) == before


def test_the_tables_here_follow_from_the_results_here():
    """All rows of backends, and those of block sizes that a report measured."""
    reports = measured.kept({}, ROOT)
    for path, text in adopt.tables(reports, reports, ROOT).items():
        assert path.read_text() == text, path
