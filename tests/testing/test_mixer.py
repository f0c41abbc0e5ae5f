"""`check_mixer` accepts what obeys the contract and names the law that a mixer breaks."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from based_jax import mixers
from based_jax.testing import check_mixer


def with_fault(name, change):
    """A short convolution whose `mix` is changed: change(mix, x, state, context)."""

    class Faulty(mixers.ShortConv):
        def mix(self, x, state, context):
            return change(super().mix, x, state, context)

    Faulty.__name__ = name
    return Faulty


def sees_the_next_token(mix, x, state, context):
    y, state = mix(x, state, context)
    return y + 0.1 * jnp.pad(x, ((0, 0), (0, 1), (0, 0)))[:, 1:], state


def forgets(mix, x, state, context):
    y, after = mix(x, state, context)
    return y, None if state is None else jax.tree.map(lambda old, new: old, state, after)


def in_float32(mix, x, state, context):
    y, state = mix(x, state, context)
    return y.astype("float32"), state


def starts_long_calls_anew(mix, x, state, context):
    return mix(x, jax.tree.map(jnp.zeros_like, state) if x.shape[1] > 1 else state, context)


FAULTS = {
    "padding law": lambda mix, x, state, context: mix(x, state, dataclasses.replace(context, mask=None)),
    "split law": starts_long_calls_anew,
    "segment law": lambda mix, x, state, context: mix(
        x, state, dataclasses.replace(context, segment_ids=None)
    ),
    "one token at a time": forgets,
    "causality": sees_the_next_token,
    "what a call returns": lambda mix, x, state, context: (mix(x, state, context)[0], None),
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


def test_a_state_without_a_stream_is_refused():
    class Bare(mixers.ShortConv):
        def empty_state(self, batch_size, max_length, dtype):
            return (jnp.zeros((batch_size, self.d_model)),)

    with pytest.raises(AssertionError, match=r"\(tuple\); start it with `init_stream` in `empty_state`"):
        check_mixer(Bare, d_model=4)


def test_a_mixer_with_other_laws_is_refused():
    with pytest.raises(ValueError, match=r"InputConv\.wants_tokens = True: expected False"):
        check_mixer(mixers.InputConv)
