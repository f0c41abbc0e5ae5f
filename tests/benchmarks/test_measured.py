"""The pages' measured numbers are those of the kept reports, and a newer report replaces them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import adopt, choices
from benchmarks.gpu.measured import RESULTS, kept
from tests.floors import ROOT


def updated(tree: Path) -> dict[str, str]:
    """The pages of a tree, from the reports in it."""
    pages = adopt.pages(kept({}, tree), tree)
    return {path.relative_to(tree).as_posix(): text for path, text in pages.items()}


PAGES = updated(ROOT)


@pytest.mark.parametrize("page", PAGES)
def test_every_number_is_that_of_a_kept_report(page):
    advice = "run `python -m benchmarks adopt`"
    assert (ROOT / page).read_text() == PAGES[page], advice
    tables = [part.splitlines() for part in PAGES[page].split("\n\n") if part.startswith("| ")]
    assert all(len({line.count("|") for line in table if line.startswith("|")}) == 1 for table in tables)


def row(section: str, step: str, what: str, seconds: float, **facts: Any) -> dict[str, Any]:
    return {
        "section": section,
        "step": step,
        "what": what,
        "status": "measured",
        "seconds": seconds,
        "bound_fraction": 0.5,
        **facts,
    }


NOT_FINITE: dict[str, Any] = {"errors": {"result 0": None}, "tolerance": 0.02}

LATER = (
    row("correctness", "window W64 H4 G4 K64 bfloat16 no rotary", "check", 0, status="wrong", **NOT_FINITE),
    row("forward", "B16 N32768", "pallas", 2.5e-3, batch=16, length=32768, heads=16),
    row("forward", "B16 N32768", "mosaic", 1.5e-3, batch=16, length=32768, heads=16),
    row("torch", "backward", "fla_parallel_based", 0.321, batch=16, length=32768),
    row(
        "torch",
        "train attention compile",
        "attention compile",
        0.25,
        batch=16,
        length=2048,
        tokens_per_second=131e3,
    ),
    row("train", "360m B16 N2048", "based", 0.16, tokens_per_second=204_800.0),
    row("generate", "360m B1", "based", 0.128, tokens_per_second=1000.0),
    row("prefill", "360m B1 N16384", "attention_cudnn", 0.1, tokens_per_second=163_840.0),
)


def test_a_newer_report_replaces_numbers(tmp_path):
    for name in (*PAGES, adopt.FLOORS, *(f"pallas_kernels/{op}/backends.json" for op in choices.AXES)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    results = tmp_path / RESULTS / "h100"
    shutil.copytree(ROOT / RESULTS / "h100", results)
    report = json.loads((results / "speed.json").read_text())
    report["machine"]["date"] = "2999-01-01T00:00:00+00:00"
    report["rows"] = LATER
    (results / "later.json").write_text(json.dumps(report))
    pages = updated(tmp_path)
    times = pages["docs/gpu.md"]
    assert "| `window_step` | bfloat16 | 6 | inf |" in pages["docs/numerics.md"]
    assert "2999-01-01" in times
    assert re.search(r"\| B16 N32768 \| 1.50 \| 2.50 \| 46.6 \|", times)
    assert re.search(r"\| B16 N32768 \| 9.05 \| 11.3 \| 170 \| 321 \|", times)
    assert "| attn-360m, torch, compile | 16 x 2,048 | 131,000 | 250 |" in times
    assert "| based-360m, ours | 16 x 2,048 | 204,800 | 160 | \N{EN DASH} |" in times
    assert "| based-360m, ours | 1 | 1,000 |" in pages["docs/decoding.md"]
    assert "| attn-360m, ours, attention by cuDNN | 1 x 16,384 | 163,840 |" in pages["docs/decoding.md"]
    floors = json.loads((ROOT / adopt.FLOORS).read_text())["summary"]
    for program, time, seconds in (("train 16 x 2048", "160", 0.16), ("decode 1 after 1024", "1.00", 1e-3)):
        over = seconds / floors[f"based-360m, {program}"]["floor_seconds"]
        assert re.search(rf"\| based-360m, {program} \| [\d.]+ \| {time} \| {over:.2f} \|", times)
    assert "training on 16 x 2,048 tokens: 204,800 (based-360m)" in pages["README.md"]
    assert "generation of 128 rows: 68,723 (based-360m)" in pages["README.md"]  # the most, not the newest


def test_a_page_without_its_block_is_refused(monkeypatch):
    monkeypatch.setitem(adopt.BLOCKS, "README.md", {"elsewhere": lambda device: iter(())})
    with pytest.raises(ValueError, match=r"README\.md: expected the lines <!-- measured:elsewhere -->"):
        updated(ROOT)
