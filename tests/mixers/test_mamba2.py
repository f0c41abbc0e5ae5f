"""Mamba-2: initial values."""

import numpy as np

from tests.mixers.built import initial_parameters


def test_it_begins_with_the_papers_steps():
    """Step sizes log-uniform from 0.001 to 0.1, -A uniform from 1 to 16; torch's weights with num_layers."""
    params = initial_parameters("mamba2", d_model=64, head_dim=2, d_state=2, num_layers=4)
    steps = np.log1p(np.exp(params["dt_bias"]))
    assert 1e-3 * 0.99 <= steps.min() < 3e-3 < 3e-2 < steps.max() <= 0.1 * 1.01
    A = np.exp(params["A_log"])
    assert 1 <= A.min() < 4 < 13 < A.max() <= 16
    assert np.isclose(params["in_proj"]["kernel"].std(), (3 * 64) ** -0.5, rtol=0.1)
    assert np.isclose(params["out"]["kernel"].std(), (3 * 128 * 4) ** -0.5, rtol=0.1)
