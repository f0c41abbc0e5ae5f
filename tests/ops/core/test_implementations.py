"""Implementations of other packages: by name, by priority, and what they cannot run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax import ops
from based_jax.ops.core import implementations
from tests.arrays import array, normals, ones
from tests.tolerances import FLOAT32, assert_close


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """What a test registers is forgotten."""
    monkeypatch.setattr(implementations, "_REGISTERED", {})


CALLS: list[set[str]] = []


def recurrence(*args, **options):
    """The delta rule of somebody else, which takes the op's arguments without `implementation`."""
    CALLS.append(set(options))
    return ops.delta_rule(*args, implementation="reference", **options)


def without_gates(q=None, k=None, v=None, beta=None, log_decay=None, **options):
    return None if log_decay is None else "has no gates (log_decay)"


def test_all_arguments_and_the_state_are_handed_on():
    ops.register("delta_rule", "theirs", recurrence)
    how = {"scale": 0.5, "chunk_size": 2, "return_state": True, "mask": array(np.tri(2, 5, 3) > 0)}
    how |= {"segment_ids": ones((2, 5), int), "initial_state": ops.init_linear_recurrence_state(2, 2, 3, 3)}
    CALLS.clear()
    ours, theirs = (
        ops.delta_rule(*arguments(), **how, implementation=name) for name in ("reference", "theirs")
    )
    assert [set(how)] == CALLS
    assert_close(theirs, ours, 0)


def arguments():
    rng = np.random.default_rng(0)
    q, k, v = (array(rng.normal(size=(2, 5, 2, 3)), np.float32) for _ in range(3))
    return q, k / 3, v, array(rng.random((2, 5, 2)), np.float32)


def test_by_name_and_by_priority():
    ops.register("delta_rule", "theirs", recurrence, supports=without_gates)
    assert ops.implementations("delta_rule") == ("theirs", "pallas", "xla", "reference")
    expected = ops.delta_rule(*arguments(), implementation="reference")
    CALLS.clear()
    assert_close(ops.delta_rule(*arguments(), implementation="theirs"), expected, FLOAT32)
    assert len(CALLS) == 1
    assert ops.implementation_for("delta_rule") == "xla"
    ops.delta_rule(*arguments())
    assert len(CALLS) == 1, "without a priority it is for those who name it"
    ops.register("delta_rule", "theirs", recurrence, supports=without_gates, priority=1)
    assert ops.implementation_for("delta_rule") == "theirs"
    assert_close(ops.delta_rule(*arguments()), expected, FLOAT32)
    assert len(CALLS) == 2
    ops.delta_rule(*arguments(), log_decay=jnp.zeros((2, 5, 2)))
    assert len(CALLS) == 2, "what it does not support is the library's"


def test_the_highest_priority_comes_first():
    chosen = []
    for name, priority in (("low", 1), ("high", 3), ("middle", 2)):
        ops.register("delta_rule", name, functools.partial(_note, chosen, name), priority=priority)
    ops.delta_rule(*arguments())
    assert chosen == ["high"]


def _note(chosen, name, *args, **options):
    chosen.append(name)
    return args[2]


def test_mixers_pass_the_name_on():
    def theirs(q, k, v, log_decay, *, return_state=False, **options):
        return (v, ops.init_linear_recurrence_state(1, 2, 4, 8)) if return_state else v

    ops.register("linear_recurrence", "theirs", theirs)
    mixer = bj.mixers.make("retnet", d_model=8, num_heads=2, implementation="theirs")
    x = array(np.ones((1, 3, 8)), np.float32)
    variables = normals(mixer.init, jax.ShapeDtypeStruct((1, 3, 8), jnp.float32))
    y, _ = mixer.apply(variables, x)
    assert y.shape == (1, 3, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.register("no_such", "theirs", recurrence), "op = 'no_such': expected one of"),
        (lambda: ops.register("delta_rule", "xla", recurrence), "name = 'xla': expected a name other than"),
        (
            lambda: ops.delta_rule(*arguments(), log_decay=jnp.zeros((2, 5, 2)), implementation="theirs"),
            r"implementation = 'theirs': has no gates \(log_decay\)",
        ),
        (
            lambda: ops.delta_rule(*arguments(), implementation="other"),
            "implementation = 'other': expected None or one of 'theirs', 'pallas', 'xla', 'reference'",
        ),
    ],
)
def test_a_name_means_that_one_or_an_error(call, message):
    ops.register("delta_rule", "theirs", recurrence, supports=without_gates)
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", [None, "theirs"])
def test_supports_returns_a_reason_or_none(name):
    ops.register("delta_rule", "theirs", recurrence, supports=lambda *args, **options: True, priority=1)
    with pytest.raises(ValueError, match="supports of 'theirs' returned = True: expected None, or a phrase"):
        ops.delta_rule(*arguments(), implementation=name)
