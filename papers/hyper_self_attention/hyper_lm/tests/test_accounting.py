"""The table of hyper_lm/README.md is what the mixers have, and the mixers have what the paper says."""

import pytest

from papers.hyper_self_attention.hyper_lm import accounting
from tests.floors import ROOT


@pytest.fixture(scope="module")
def accounts():
    """Counted once: tracing takes a second or two."""
    return [accounting.account(form) for form in accounting.FORMS]


def test_the_page_is_up_to_date(accounts):
    page = (ROOT / "papers" / "hyper_self_attention" / "hyper_lm" / "README.md").read_text(encoding="utf-8")
    assert accounting.table(accounts) in page, "run python -m papers.hyper_self_attention.hyper_lm.accounting"


def test_as_the_paper_says(accounts):
    """Theta(L^n), Theta(d^2), and as many parameters as self-attention where it says so."""
    for form, found in zip(accounting.FORMS, accounts, strict=True):
        assert found.growth == pytest.approx(form.exponent, abs=0.01), form
        assert 4 <= found.parameters / accounting.WIDTH**2 < 6.01, form
    plain = [n for n, form in enumerate(accounting.FORMS) if form.exponent > 1 and not form.options]
    assert [accounts[n].parameters for n in plain] == [4 * accounting.WIDTH**2] * 3


def test_states(accounts):
    """Constant for the linear forms, a cache for the others."""
    for form, found in zip(accounting.FORMS, accounts, strict=True):
        mixer = accounting.mixers.make(
            form.mixer, d_model=accounting.WIDTH, num_heads=accounting.HEADS, **form.options
        )
        half = mixer.state_size(accounting.LENGTHS[1] // 2)
        assert found.state == (half if form.exponent == 1 else 2 * half), form
        assert 4 * found.state <= found.held < 4.3 * found.state, form  # counters, and spare columns
