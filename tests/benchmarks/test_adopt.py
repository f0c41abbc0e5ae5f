"""The pages' numbers of GPUs are those of the kept reports, and a newer report replaces them."""

import json
import shutil

import pytest

from benchmarks import adopt
from pallas_kernels import choices
from pallas_kernels.adopt import RESULTS
from tests.conftest import ROOT

PAGES = {path.relative_to(ROOT).as_posix(): text for path, text in adopt.updated(ROOT).items()}


@pytest.mark.parametrize("page", PAGES)
def test_every_number_is_that_of_a_kept_report(page):
    advice = "run `python -m benchmarks adopt --reports benchmarks/results/h100`"
    assert (ROOT / page).read_text() == PAGES[page], advice
    assert "<!-- measured:" in PAGES[page]


def test_a_newer_report_replaces_a_number(tmp_path):
    for name in (*PAGES, adopt.FLOORS, *(f"pallas_kernels/{op}/backends.json" for op in choices.AXES)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    results = tmp_path / RESULTS / "h100"
    shutil.copytree(ROOT / RESULTS / "h100", results)
    report = json.loads((results / "speed.json").read_text())
    report["machine"]["date"] = "2999-01-01T00:00:00+00:00"
    (row,) = (
        x
        for x in report["rows"]
        if (x["section"], x["step"], x["what"]) == ("forward", "B16 N32768", "pallas")
    )
    report["rows"] = [row | {"seconds": 2.5e-3}]
    (results / "later.json").write_text(json.dumps(report))
    page = adopt.updated(tmp_path)[tmp_path / "docs/benchmarks.md"]
    assert "| B16 N32768 | 2.50 |" in page
    assert "2999-01-01" in page


def test_a_page_without_its_block_is_refused(monkeypatch):
    monkeypatch.setitem(adopt.BLOCKS, "README.md", {"elsewhere": lambda card: iter(())})
    with pytest.raises(ValueError, match=r"README\.md: expected the lines <!-- measured:elsewhere -->"):
        adopt.updated(ROOT)
