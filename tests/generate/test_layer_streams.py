"""A loop over tokens carries one array of its layers' streams, and returns what each layer would have."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np

from based_jax.generate.layer_streams import LayerStreams
from based_jax.generate.pool import begin, decode, new_rows
from based_jax.generate.sampling import Sampler, row_settings
from based_jax.ops import Stream

ROWS = 2


def streams(state):
    return [x for x in jax.tree.leaves(state, is_leaf=_is_stream) if _is_stream(x)]


def _is_stream(node):
    return isinstance(node, Stream)


def test_the_state_after_the_loop_is_that_after_single_steps(hybrid):
    model, params, steps = hybrid.model, hybrid.params, 3
    text = begin(model, ROWS, 8)

    def in_a_segment(node):
        if not _is_stream(node):
            return node
        at = {"length": jnp.array([0, 2]), "start": jnp.array([0, 1]), "segment": jnp.array([0, 5])}
        return dataclasses.replace(node, **at, broken=jnp.array([False, True]))

    state = jax.tree.map(in_a_segment, text.state, is_leaf=_is_stream)
    settings = row_settings([Sampler()] * ROWS, None)
    pool = new_rows(jax.tree.map(jnp.copy, text._replace(state=state)), settings, None, steps + 1)
    pool, made = decode(model, params, pool, steps, chunk=4)
    assert made.count.tolist() == [steps] * ROWS
    after, tokens = pool.text, made.choice.token
    step = jax.jit(model.apply)
    for t in range(steps):
        _, state = step(params, tokens[:, t : t + 1], state)
    chex.assert_trees_all_equal_structs(after.state, state)
    assert len(streams(state)) >= len(model.config.schedule)
    chex.assert_trees_all_equal(streams(after.state), streams(state))
    assert all(stream.length.tolist() == [3, 5] for stream in streams(state))


def test_layers_may_be_broken_apart(hybrid):
    """A token may be no number from some layer on."""
    state = hybrid.model.init_state(ROWS, 8)
    kept = LayerStreams(state)
    carried = kept.strip(state)
    assert not any(map(_is_stream, jax.tree.leaves(carried, is_leaf=_is_stream)))
    broken = np.arange(carried.broken.size).reshape(carried.broken.shape) % 3 == 0
    for restored in (kept.within, kept.after):
        state = restored(carried._replace(broken=broken), jnp.array(7))
        assert np.array_equal([x.broken for x in streams(state)], broken)
        assert all(x.length.tolist() == [7, 7] for x in streams(state))
        again = kept.strip(state)
        assert all(x is y for x, y in zip(again.arrays, carried.arrays, strict=True))
