"""A loop over tokens carries one array of its layers' streams, and returns what each layer would have."""

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.generate.layer_streams import LayerStreams
from based_jax.ops import Stream

ROWS = 2


def streams(state):
    return [x for x in jax.tree.leaves(state, is_leaf=_is_stream) if _is_stream(x)]


def _is_stream(node):
    return isinstance(node, Stream)


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
