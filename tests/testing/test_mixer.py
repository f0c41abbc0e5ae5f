"""`check_mixer` accepts what obeys the contract and names the law that a mixer breaks."""

import jax
import jax.numpy as jnp
import pytest

from based_jax import mixers
from based_jax.testing import check_mixer


def with_fault(name, change):
    """A short convolution whose call is changed: change(call, x, state, context)."""

    class Faulty(mixers.ShortConv):
        def __call__(self, x, state=None, *, segment_ids=None, positions=None, mask=None):
            def call(x, state, **context):
                return mixers.ShortConv.__call__(self, x, state, **context)

            return change(call, x, state, {"segment_ids": segment_ids, "mask": mask})

    Faulty.__name__ = name
    return Faulty


def sees_the_next_token(call, x, state, context):
    y, state = call(x, state, **context)
    return y + 0.1 * jnp.pad(x, ((0, 0), (0, 1), (0, 0)))[:, 1:], state


def forgets(call, x, state, context):
    y, after = call(x, state, **context)
    return y, None if state is None else jax.tree.map(lambda old, new: old, state, after)


def in_float32(call, x, state, context):
    y, state = call(x, state, **context)
    return y.astype("float32"), state


FAULTS = {
    "segment law": lambda call, x, state, context: call(x, state, **context | {"segment_ids": None}),
    "one token at a time": forgets,
    "causality": sees_the_next_token,
    "what a call returns": lambda call, x, state, context: (call(x, state, **context)[0], state or {}),
    "bfloat16": in_float32,
}


def test_what_obeys_the_contract_passes():
    check_mixer(mixers.ShortConv, d_model=4, kernel_size=3)


@pytest.mark.release
def test_rows_that_are_transformed_as_a_whole_are_causal_up_to_rounding():
    check_mixer(mixers.LongConv, l_max=11, exact=False)


@pytest.mark.parametrize("law", FAULTS)
def test_the_law_that_is_broken_is_named(law):
    message = f"^Faulty breaks the contract: {law}"
    with pytest.raises(AssertionError, match=message):
        check_mixer(with_fault("Faulty", FAULTS[law]), d_model=4)


def test_a_mixer_with_other_laws_is_refused():
    with pytest.raises(ValueError, match=r"InputConv\.wants_tokens = True: expected False"):
        check_mixer(mixers.InputConv)
