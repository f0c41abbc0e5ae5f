"""`check_mixer` accepts what obeys the contract and names the law that a mixer breaks."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from based_jax import mixers
from based_jax.testing import check_mixer
from tests.marks import release_but, slow_but


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


@pytest.mark.release
def test_what_obeys_the_contract_passes():
    check_mixer(mixers.ShortConv, d_model=4, kernel_size=3, length=16)


@pytest.mark.slow
def test_rows_that_are_transformed_as_a_whole_are_causal_up_to_rounding():
    check_mixer(mixers.LongConv, l_max=11, exact=False, d_model=4, length=16)


@pytest.mark.parametrize("law", release_but([law for law in FAULTS if law != "bfloat16"], FAULTS))
def test_the_law_that_is_broken_is_named(law):
    message = f"^Faulty breaks the contract: {law}"
    with pytest.raises(AssertionError, match=message):
        check_mixer(with_fault("Faulty", FAULTS[law]), d_model=4, length=16)


def resets(t):
    """Whole rows begin anew after t tokens, which single tokens do not."""

    def change(mix, x, state, context):
        y, after = mix(x, state, context)
        if x.shape[1] <= t:
            return y, after
        ids = jnp.zeros(x.shape[:2], int) if context.segment_ids is None else context.segment_ids
        ids = 2 * ids + (jnp.arange(x.shape[1]) >= t)
        return mix(x, state, dataclasses.replace(context, segment_ids=ids))[0], after

    return change


def joins(t):
    """Documents that begin after t tokens are one."""

    def change(mix, x, state, context):
        ids = context.segment_ids
        if ids is not None and x.shape[1] > t:
            ids = jnp.where(jnp.arange(x.shape[1]) > t, ids[:, t : t + 1], ids)
        return mix(x, state, dataclasses.replace(context, segment_ids=ids))

    return change


def sees_one_token_ahead(t):
    def change(mix, x, state, context):
        y, after = mix(x, state, context)
        return y if x.shape[1] <= t + 1 else y.at[:, t].add(x[:, t + 1]), after

    return change


def widens(mix, x, state, context):
    y, after = mix(x, state, context)
    return y, jax.tree.map(lambda leaf: leaf.astype("float32") if leaf.dtype == "bfloat16" else leaf, after)


FORMS = {
    "a masked token": lambda x, state, context: x.shape[1] == 1 and {"mask": None},
    "a token that begins a document": lambda x, state, context: x.shape[1] == 1 and {"segment_ids": None},
    "a mask alone": lambda x, state, context: context.segment_ids is None and {"mask": None},
    "positions": lambda x, state, context: context.has_positions and {"segment_ids": None},
    "ids alone": lambda x, state, context: context.mask is None and {"segment_ids": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_faults_in_one_form_of_call_are_found(form):
    def change(mix, x, state, context):
        return mix(x, state, dataclasses.replace(context, **(FORMS[form](x, state, context) or {})))

    with pytest.raises(AssertionError, match="breaks the contract: calls of all forms"):
        check_mixer(with_fault("Faulty", change), d_model=4, length=16)


@pytest.mark.slow
def test_prompts_and_single_rows_are_called_too():
    def drops(mix, x, state, context):
        is_prompt = x.shape[1] > 1 and context.mask is None
        return mix(x, jax.tree.map(jnp.zeros_like, state) if is_prompt else state, context)

    for change in (drops, lambda mix, x, *more: (mix(x, *more)[0] * 2 / len(x), mix(x, *more)[1])):
        with pytest.raises(AssertionError, match="breaks the contract: calls of all forms"):
            check_mixer(with_fault("Faulty", change), d_model=4, length=16)


def test_a_state_that_becomes_wider_is_refused():
    with pytest.raises(AssertionError, match="breaks the contract: bfloat16"):
        check_mixer(with_fault("Faulty", widens), d_model=4, length=16)


@pytest.mark.slow
@pytest.mark.parametrize("t", slow_but([24, 64], [16, 24, 32, 64], core=[64]))
@pytest.mark.parametrize(
    ("fault", "law"),
    [(sees_one_token_ahead, "causality"), (resets, "one token at a time"), (joins, "segment law|split law")],
)
def test_faults_at_later_tokens_are_found(fault, law, t):
    with pytest.raises(AssertionError, match=f"breaks the contract: ({law})"):
        check_mixer(with_fault("Faulty", fault(t)), d_model=4)


@pytest.mark.slow
def test_rows_are_two_and_a_half_chunks_of_the_mixer_long():
    class Chunked(with_fault("Faulty", sees_one_token_ahead(200))):
        chunk_size: int | None = 96

    check_mixer(Chunked, d_model=4, chunk_size=None)
    with pytest.raises(AssertionError, match="causality"):
        check_mixer(Chunked, d_model=4)


def test_a_state_with_one_array_twice_is_refused():
    class Twice(mixers.ShortConv):
        def empty_state(self, batch_size, max_length, dtype):
            state = super().empty_state(batch_size, max_length, dtype)
            leaves, structure = jax.tree.flatten(state)
            return jax.tree.unflatten(structure, leaves), leaves[0]

    with pytest.raises(AssertionError, match="one array twice, which cannot be donated"):
        check_mixer(Twice, d_model=4)


def test_a_state_without_a_stream_is_refused():
    class Bare(mixers.ShortConv):
        def empty_state(self, batch_size, max_length, dtype):
            return (jnp.zeros((batch_size, self.d_model)),)

    with pytest.raises(AssertionError, match=r"\(tuple\); start it with `init_stream` in `empty_state`"):
        check_mixer(Bare, d_model=4)


def test_a_mixer_with_other_laws_is_refused():
    with pytest.raises(ValueError, match=r"InputConv\.wants_tokens = True: expected False"):
        check_mixer(mixers.InputConv)
