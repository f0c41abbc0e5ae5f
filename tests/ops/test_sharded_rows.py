"""Where the batch is sharded, what each row writes to indices of its own needs no other device."""

import pytest

from tests.subprocesses import run_python

PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from based_jax import ops
from based_jax.generate.sampling import Counts
from based_jax.ops import selection

mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
over = NamedSharding(mesh, PartitionSpec("data"))
x, ids = jnp.ones((2, 32, 2, 4)), jnp.zeros((2, 32), int)

def landmarks(x, ids):
    return ops.landmark_attention(x, x, x, tokens_per_landmark=4)

def cached(x, ids):
    state = ops.init_kv_cache(2, 8, 2, 4, 4)
    how = {"initial_state": state, "return_state": True, "implementation": "xla"}
    return ops.softmax_attention(x, x, x, left=7, **how)

def with_sinks(x, ids):
    state = ops.init_sink_cache(2, 7, 2, 2, 4, 4)
    return ops.sink_attention(x, x, x, left=7, sinks=2, initial_state=state, return_state=True)

def conv_basis(x, ids):
    state = ops.init_conv_attention_state(2, 32, 2, 2, 4, 4)
    how = {"gradient": "anchors", "initial_state": state, "return_state": True}
    return ops.conv_attention(x, x, x, starts=(0, 4), **how)

def selected(x, ids):
    positions, _ = ops.advance(None, 2, 32, ids)
    chosen = selection.repeated(ids) & selection.highest(x[:, :, 0, 0], ids + 3, positions)
    weights = selection.segment_softmax(x[:, :, 0, 0], positions)
    return selection.attention_of_some(x, x, x, chosen, 4), weights

for function in (landmarks, cached, with_sinks, conv_basis, selected):
    total = lambda x, ids: sum(leaf.astype("float32").sum() for leaf in jax.tree.leaves(function(x, ids)))
    rows = jax.jit(jax.grad(total), in_shardings=(over, over), out_shardings=over)
    assert "all-gather" not in rows.lower(x, ids).compile().as_text(), function.__name__

count = lambda ids: Counts.of_prompt(ids, ids == 0, 64).add(ids[:, 0], ids[:, 0] == 0)
count = jax.jit(count, in_shardings=over, out_shardings=over)
assert "all-gather" not in count.lower(ids).compile().as_text()
"""


@pytest.mark.slow
def test_no_rows_are_gathered():
    run_python(PROGRAM, devices=2)
