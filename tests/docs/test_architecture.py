"""The picture of the architecture is what the imports say."""

import itertools
import re

import pytest

from tests.docs.scripts import script
from tests.floors import HEIGHT

architecture = script("architecture")


@pytest.fixture(scope="module")
def found():
    """The imports of all packages, which take a second to read."""
    return architecture.imports()


def test_arrows_are_imports_and_no_import_is_lost(found):
    arrows = architecture.arrows(found)
    assert all(other in found[name] for name, other in arrows)
    reached = {name: {name} for name in found}
    for _ in found:  # at most as many steps as there are packages
        for name, other in arrows:
            reached[name] |= reached[other]
    assert all(others <= reached[name] for name, others in found.items())


def test_boxes_do_not_overlap_and_arrows_point_down(found):
    drawing = architecture.picture(found)
    boxes = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', drawing)
    assert len(boxes) == len(HEIGHT) + 1
    assert all(f">{name}</text>" in drawing for name in HEIGHT)
    for a, b in itertools.combinations([tuple(map(int, box)) for box in boxes], 2):
        apart = abs(a[0] - b[0]) >= a[2] or abs(a[1] - b[1]) >= a[3]
        assert apart, (a, b)
    for line in re.findall(r'<path d="M[\d.]+,(\d+) [^"]*?(\d+)" fill="none"', drawing):
        assert int(line[0]) < int(line[1])
