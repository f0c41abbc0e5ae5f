"""Linear HyperAttention: the size of its state."""

import pytest

from based_jax import mixers
from tests.mixers.built import allocated_floats


@pytest.mark.parametrize(
    "options", [{"feature_dim": 4}, {"feature_map": "identity", "normalize": "none", "order": 4}]
)
def test_state_sizes_are_what_is_allocated(options):
    mixer = mixers.make("linear_hyper_attention", d_model=64, num_heads=2, **options)
    assert allocated_floats(mixer, 9) == mixer.state_size(9)
