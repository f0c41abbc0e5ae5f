"""What the generated pages say is so."""

import pytest

import based_jax as bj
from based_jax.mixers import registry
from papers.results.parameters import PRINTED
from tests.docs.scripts import script
from tests.floors import ROOT

tables = script("tables")


def test_pages_written_by_hand_are_few_and_short():
    pages = {page.relative_to(tables.HERE).as_posix(): page for page in tables.HERE.rglob("*.md")}
    by_hand = pages.keys() - tables.PAGES.keys()
    assert len(by_hand) <= 30
    lengths = {name: len(page.read_text(encoding="utf-8").splitlines()) for name, page in pages.items()}
    assert {name: length for name, length in lengths.items() if length > 300} == {}


def test_mixers_of_other_packages_are_not_listed(monkeypatch):
    monkeypatch.setattr(registry.MIXERS, "entries", dict(registry.MIXERS.entries))
    own = list(bj.mixers.names())

    @bj.mixers.register("outside")
    class Outside(bj.mixers.ShortConv):
        pass

    assert "outside" in bj.mixers.names()
    assert tables.own_mixers() == own


@pytest.mark.parametrize("name", tables.PARITY)
def test_parity_cases_exist(name):
    assert name in bj.mixers.names()
    fixtures = ROOT / "tests" / "fixtures"
    for case in tables.PARITY[name]:
        assert (fixtures / case).is_dir() or (fixtures / f"{case}.npz").is_file()


def test_differences_from_printed_counts_are_explained():
    assert PRINTED.keys() <= set(bj.presets.names())
    unexplained = {name: printed.millions for name, printed in PRINTED.items() if not printed.remark}
    for name, millions in unexplained.items():
        assert bj.param_count(bj.presets.get(name)) == pytest.approx(millions * 1e6, rel=0.005), name
