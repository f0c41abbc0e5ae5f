"""RWKV-5: initial values by depth."""

import numpy as np

from tests.mixers.built import initial_parameters
from tests.tolerances import FLOAT32, assert_close


def test_it_begins_as_in_the_authors_code():
    """Spec of Zoology 3.10, in the second of three layers; the blends as for RWKV-4 (3.9)."""
    params = initial_parameters("rwkv5", d_model=12, head_size=4, layer=1, num_layers=3)
    c = np.arange(12)
    expected = {
        "decay": (-6 + 5 * (c / 11) ** (0.7 + 1.3 * 0.5)).reshape(3, 4),
        "bonus": (0.5 * (1 - c / 11) + 0.1 * ((c + 1) % 3 - 1)).reshape(3, 4),
        "mix_k": (c / 12) ** (2 / 3),
        "mix_v": (c / 12) ** (2 / 3) + 0.15,
        "mix_r": (c / 12) ** (1 / 3),
        "mix_g": (c / 12) ** (1 / 3),
    }
    for name, values in expected.items():
        assert_close(params[name], values, FLOAT32, name)
