"""Every op and mixer under every transformation: the same numbers, or the one error of the table."""

import json
import re
from contextlib import nullcontext

import jax
import pytest

from based_jax import mixers, ops
from based_jax.ops.core.implementations import DECLARED
from tests.floors import ROOT
from tests.marks import slow_but
from tests.test_eager import CALLS, K, Q, V, X
from tests.transformations import subjects, transformations
from tests.transformations.transformations import CHECKS

TABLE = json.loads((ROOT / "docs" / "transformations.json").read_text(encoding="utf-8"))
"""What has a gradient of its own has no derivative in forward mode: ops by implementation, and mixers."""
REVERSE_ONLY = {*TABLE["reverse_only"]}

CELLS = [(name, check) for name in subjects.names() for check in CHECKS]

THOROUGH = ("taylor_attention xla", "mixers.linear_attention")
"""under everything: sums of chunks, a gradient of its own, a module"""


def is_quick(name, check):
    """One of each way to compute under what differs by it; the slow run has the others."""
    if check == "debug_nans_inside":  # operation by operation
        return name == "cross_entropy"
    return name in THOROUGH or (name == "taylor_step pallas" and check == "vmap")


QUICK = [cell for cell in CELLS if is_quick(*cell)]


def base(name):
    """A subject without the number of its case."""
    return name.partition("-")[0] if name.startswith("mixers.") else name


@pytest.mark.parametrize("cell", slow_but(QUICK, CELLS, core=[]), ids="-".join)
def test_table(cell):
    name, check = cell
    subject = subjects.subject(name)
    if check in transformations.OF_DERIVATIVES and not transformations.split(subject)[0]:
        return  # integers have no derivatives
    is_error = base(name) in REVERSE_ONLY and check in TABLE["forward_mode"]
    with (
        subject.context(),
        pytest.raises(TypeError, match=re.escape(TABLE["error"])) if is_error else nullcontext(),
    ):
        CHECKS[check](subject)


def test_the_table_is_about_what_there_is():
    names = {base(name) for name in subjects.names()}
    assert names >= REVERSE_ONLY
    assert set(CHECKS) == set(TABLE["transformations"]) > set(TABLE["forward_mode"])
    assert {f"mixers.{name}" for name in mixers.names()} <= names
    assert {name.partition(" ")[0] for name in names} >= DECLARED.keys()


WITH_REFERENCE = [name for name in sorted(REVERSE_ONLY) if name.startswith("mixers.")]


@pytest.mark.parametrize("name", slow_but(["mixers.mamba"], WITH_REFERENCE, core=[]))
def test_mixers_have_forward_mode_by_the_reference(name):
    CHECKS["jvp"](subjects.mixer(name.removeprefix("mixers."), implementation="reference"))


def test_outside_jit_the_error_names_the_op():
    mixer = mixers.make("mamba", d_model=X.shape[-1])
    variables = jax.eval_shape(mixer.init, jax.random.key(0), X)
    variables = jax.tree.map(lambda x: jax.numpy.ones(x.shape, x.dtype), variables)
    for name, call, x, has_reference in (
        ("softmax_attention", lambda q: ops.softmax_attention(q, K, V, implementation="tiled"), Q, True),
        ("cross_entropy", CALLS["cross_entropy"][0], X, False),
        ("diagonal_scan", lambda x: ops.diagonal_scan((x, x), lambda t: t, lambda h, t: h), X, True),
        ("Mamba", lambda x: mixer.apply(variables, x)[0], X, True),
    ):
        with pytest.raises(TypeError, match=f"^{name} has no forward-mode derivative here") as raised:
            jax.jvp(call, (x,), (x,))
        assert str(raised.value).endswith("implementation='reference'") == has_reference
