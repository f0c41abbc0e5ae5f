"""The errata: what is printed is wrong, what is said instead is right, and sections have one form."""

import math
import re

import pytest

from papers.check import EXACT
from tests.floors import ROOT

PAGES = {
    path.parent.name: re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)[1:]
    for path in sorted((ROOT / "papers").glob("*/errata.md"))
}
"""Paper -> the sections of its page: contents, errata, misprints."""
WRONG = 1e-3
"""How far what is printed is from the direct computation at least; inputs are of order 1."""


def anchor(section: str) -> str:
    """As GitHub makes it, of a section's title."""
    return re.sub(r"[^\w\- ]", "", section.splitlines()[0].lower()).replace(" ", "-")


ERRATA = {anchor(section): section for sections in PAGES.values() for section in sections[1:-1]}


@pytest.mark.parametrize("name", ERRATA)
def test_the_printed_form_fails_and_the_repair_holds(name, unchecked):
    words, *blocks = re.split(r"^```python\n(.*?)^```$", ERRATA[name], flags=re.S | re.M)
    assert re.findall(r"^\*\*(.+?)\.\*\*", words, flags=re.M) == ["Printed", "Counterexample", "Repair"]
    program, _ = blocks
    names: dict = {}
    exec(compile(program, name, "exec"), names)
    printed, repaired = names["printed"](), names["repaired"]()
    assert isinstance(printed, float)
    assert isinstance(repaired, float)
    assert WRONG < printed < math.inf
    assert 0 <= repaired <= EXACT


@pytest.mark.parametrize("paper", PAGES)
def test_contents_and_sections_agree(paper):
    contents, *errata, misprints = PAGES[paper]
    assert contents.startswith("Contents\n")
    assert misprints.startswith("Misprints\n")
    assert re.findall(r"\]\(#(.+?)\)", contents) == [*map(anchor, errata)]


def test_all_are_there():
    assert set(PAGES) == {"based", "conv_basis", "hyper_self_attention", "zoology"}
    assert len(ERRATA) == 58
