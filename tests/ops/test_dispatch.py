"""A name means that implementation or an error; None means the best, and it can be asked which."""

import jax.numpy as jnp
import pytest

from based_jax import ops

OPS = ["linear_attention", "taylor_attention", "softmax_attention"]


@pytest.mark.parametrize("op", OPS)
def test_the_default_comes_first_and_is_never_the_reference(op):
    names = ops.implementations(op)
    assert "reference" in names
    assert ops.implementation_for(op) == names[0] != "reference"
    assert ops.implementation_for(op, jnp.ones((1, 2, 3, 4)), implementation=None) == names[0]


@pytest.mark.parametrize("op", OPS)
def test_a_name_is_taken_at_its_word(op):
    for name in ops.implementations(op):
        assert ops.implementation_for(op, implementation=name) == name
    with pytest.raises(ValueError, match=f"implementation = 'cuda': expected None or one of .* for {op}"):
        ops.implementation_for(op, implementation="cuda")


def test_unknown_op():
    with pytest.raises(ValueError, match="op = 'attention': expected one of 'linear_attention'"):
        ops.implementations("attention")
    with pytest.raises(ValueError, match="op = 'attention'"):
        ops.implementation_for("attention", implementation="xla")
