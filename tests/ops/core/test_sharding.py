"""Sequences sharded over devices: what an op cannot return there."""

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from based_jax import ops
from based_jax.ops.core import sharding
from tests.arrays import ones

MESH = AbstractMesh((2,), ("context",), axis_types=(AxisType.Auto,))


def test_a_state_of_sharded_sequences_is_refused():
    q, bias = ones((1, 4, 1, 2)), ones((3, 2))
    calls = {
        "linear_attention": lambda **options: ops.linear_attention(q, q, q, **options),
        "delta_rule": lambda **options: ops.delta_rule(q, q, q, ones((1, 4, 1)), **options),
        "short_conv": lambda **options: ops.short_conv(q[:, :, 0], bias, **options),
    }
    with sharding.over(NamedSharding(MESH, PartitionSpec(None, "context"))):
        for name, call in calls.items():
            assert jax.eval_shape(call).shape[:2] == (1, 4), name
            expected = "return_state = True: expected False with sequences sharded over the mesh axis"
            with pytest.raises(ValueError, match=expected):
                jax.eval_shape(lambda call=call: call(return_state=True))


def test_a_program_traced_before_does_not_serve_sharded_sequences():
    q = ones((1, 4, 1, 2))
    attend = jax.jit(lambda q: ops.linear_attention(q, q, q))
    assert "shard_map" not in str(attend.trace(q).jaxpr)
    with sharding.over(NamedSharding(MESH, PartitionSpec(None, "context"))):
        assert "shard_map" in str(attend.trace(q).jaxpr)
    assert "shard_map" not in str(attend.trace(q).jaxpr)
