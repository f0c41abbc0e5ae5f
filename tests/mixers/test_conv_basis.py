"""Conv-basis attention as a mixer: what the contract's tests cannot see of it."""

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import meta

from based_jax import mixers
from based_jax.testing import laws
from tests.tolerances import FLOAT32, assert_close

WIDTH = 8


def parameters(mixer, seed=0):
    shapes = jax.eval_shape(mixer.init, jax.random.key(0), jnp.zeros((1, 2, WIDTH)))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), meta.unbox(shapes))


def run(mixer, variables, x, **context):
    return jax.jit(mixer.apply, compiler_options=laws.QUICKLY)(variables, x, **context)[0]


def test_a_segment_per_token_is_attention_with_its_parameters():
    """Grouped heads and rotary positions included; as few segments are something else."""
    options = {"num_heads": 4, "num_kv_heads": 2, "rotary_fraction": 0.5, "qkv_bias": True}
    attention = mixers.make("attention", d_model=WIDTH, **options)
    variables, x = parameters(attention), laws.inputs(2, 9, WIDTH, 0)
    expected = run(attention, variables, x)
    all_starts = mixers.make("conv_basis", d_model=WIDTH, starts=tuple(range(9)), **options)
    assert_close(run(all_starts, variables, x), expected, FLOAT32)
    few = mixers.make("conv_basis", d_model=WIDTH, **options)
    assert np.abs(run(few, variables, x) - expected).max() > 0.1
