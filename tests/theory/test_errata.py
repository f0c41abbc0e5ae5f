"""docs/errata.md: what is printed is wrong, what is said instead is right, and sections have one form."""

import math
import re

import pytest

from based_jax.theory.check import EXACT
from tests.floors import ROOT

PAGE = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
HEAD, *SECTIONS = re.split(r"^## ", PAGE, flags=re.M)
CONTENTS, *ERRATA, MISPRINTS = SECTIONS
TITLES = [section.splitlines()[0] for section in ERRATA]
WRONG = 1e-3
"""How far what is printed is from the direct computation at least; inputs are of order 1."""


def anchor(title: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("section", ERRATA, ids=map(anchor, TITLES))
def test_the_printed_form_fails_and_the_repair_holds(section, unchecked):
    (block,) = re.findall(r"^```python\n(.*?)^```$", section, flags=re.S | re.M)
    names: dict = {}
    exec(compile(block, TITLES[ERRATA.index(section)], "exec"), names)
    printed, repaired = names["printed"](), names["repaired"]()
    assert isinstance(printed, float)
    assert isinstance(repaired, float)
    assert WRONG < printed < math.inf
    assert 0 <= repaired <= EXACT


@pytest.mark.parametrize("section", ERRATA, ids=map(anchor, TITLES))
def test_a_section_says_what_is_printed_what_fails_and_what_holds(section):
    assert re.match(r"(Zoology|Based|Hyper self-attention|Conv-Basis), [^:]+: .+\n", section)
    words = section.split("```python")[0]
    assert re.findall(r"^\*\*(.+?)\.\*\*", words, flags=re.M) == ["Printed", "Counterexample", "Repair"]


def test_contents_and_sections_agree():
    assert CONTENTS.startswith("Contents\n")
    assert MISPRINTS.startswith("Misprints")
    assert re.findall(r"\]\(#(.+?)\)", CONTENTS) == [anchor(title) for title in TITLES]
    assert len(set(TITLES)) == len(TITLES)
