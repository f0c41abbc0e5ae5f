"""Sigmoid lookups: their auxiliary loss."""

import numpy as np

from tests.mixers import selection
from tests.mixers.built import runner
from tests.mixers.selection import MASK, WIDTH
from tests.tolerances import assert_close


def test_they_penalise_the_mean_weight():
    for lookups in (None, 1):
        mixer = runner("sigmoid_lookups", d_model=WIDTH, lookups=lookups, penalty=0.5)
        s = selection.weights(mixer)
        aim = [(lookups or np.sqrt(n)) / n for n in (13, 7)]
        assert_close(selection.loss(mixer), 0.5 * max(s.mean() - aim[0], 0), 1e-5)
        expected = (s - [[aim[0]], [aim[1]]])[MASK].mean()
        assert_close(selection.loss(mixer, mask=MASK), 0.5 * max(expected, 0), 1e-5)
