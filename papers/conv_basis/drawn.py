"""Measure errors against the number of segments for drawn inputs: few segments, slow changes, noise."""

from collections.abc import Mapping
from statistics import fmean

import numpy as np

from based_jax.experiments.results import Row
from papers.conv_basis import inputs
from papers.conv_basis.approximations import Head, curves, minimal_terms
from papers.conv_basis.settings import Setting

TOLERANCE = 0.1
"""Error of the scores: outputs then err by at most 2 tanh(0.05) = 0.1 times the largest value"""


def _eight_segments(noise: float) -> inputs.Draw:
    return lambda *sizes: inputs.noisy_rotary_segments(*sizes, noise=noise, segments=8)


DRAWN: Mapping[str, inputs.Draw] = {
    "independent tokens": inputs.gaussian,
    "tokens correlated with the last (0.95)": inputs.autoregressive,
    "8 segments, noise 0.5": _eight_segments(0.5),
}


def rows(setting: Setting) -> list[Row]:
    """Return a record per input and line, with `points` (segments, output error, score error): means.

    The draws' seeds are 0, 1, ...
    """
    shape, found = (setting.length, setting.width), []
    for title, draw in DRAWN.items():
        generators = [np.random.default_rng(seed) for seed in range(setting.draws)]
        drawn = [(draw(rng, *shape), rng) for rng in generators]
        heads = [Head(inputs.q, inputs.k, rng.normal(size=shape)) for inputs, rng in drawn]
        terms = fmean(minimal_terms(head.q @ head.k.T, TOLERANCE) for head in heads)
        about = {"input": title, "length": setting.length, "draws": len(heads), "terms_at_tolerance": terms}
        lines = curves(heads, setting.terms)
        found += [{**about, "line": line, "points": points} for line, points in lines.items()]
    return found
