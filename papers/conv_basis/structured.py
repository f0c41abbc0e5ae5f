"""Test inputs whose scores have a known basis: is it recovered, and how large are attention's errors?"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import ops
from based_jax.experiments.results import Row
from based_jax.ops import conv_basis
from based_jax.typing import Array
from papers.conv_basis.approximations import WINDOW, attend, minimal_terms
from papers.conv_basis.inputs import STRUCTURED, Inputs
from papers.conv_basis.settings import Setting

ROUNDING = 1e-9
"""Share of the largest score: columns that differ by less count as equal"""


def rows(setting: Setting, seed: int = 0) -> list[Row]:
    """Return one record per input of `inputs.STRUCTURED`; all are drawn with the same seed."""
    found = []
    for title, draw in STRUCTURED.items():
        rng = np.random.default_rng(seed)
        inputs = draw(rng, setting.length, setting.width)
        v = rng.normal(size=(setting.length, setting.width))
        found.append({"input": title, "length": setting.length, **_record(inputs, v)})
    return found


def _record(inputs: Inputs, v: np.ndarray) -> dict[str, Any]:
    assert inputs.starts is not None
    scores = np.tril(inputs.q @ inputs.k.T)
    largest = float(np.abs(scores).max())
    terms, sizes = ops.conv_decompose(scores, 2 * inputs.noise + ROUNDING * largest)
    threshold = conv_basis.conv_separation(terms, sizes, WINDOW) / 2
    exact = attend(scores, v)
    record: dict[str, Any] = {
        "width": inputs.q.shape[1],
        "largest_score": largest,
        "segments": len(inputs.starts),
        "minimal_terms": minimal_terms(scores, ROUNDING * largest),
        "noise": inputs.noise,
    }
    # Zero-padding to one width changes no score and shares one program.
    q, k = (np.pad(x, ((0, 0), (0, v.shape[1] - x.shape[1]))) for x in (inputs.q, inputs.k))
    for dtype in ("float64", "float32"):
        with jax.enable_x64(dtype == "float64"):
            arrays = (jnp.asarray(x, dtype)[None, :, None] for x in (q, k, v))
            starts, error, y = _attend(*arrays, threshold, len(inputs.starts))
            record[dtype] = {
                "starts": np.asarray(starts)[0, 0].tolist(),
                "right": bool(np.array_equal(starts[0, 0], inputs.starts)),
                "score_error": float(error[0, 0]),
                "output_bound": float(2 * np.tanh(error[0, 0] / 2)),
                "paper_bound": float(2 * np.expm1(error[0, 0])),  # lemma D.4
                "output_error": float(np.abs(np.asarray(y)[0, :, 0] - exact).max() / np.abs(v).max()),
            }
    return record


@functools.partial(jax.jit, static_argnames="terms")
def _attend(q: Array, k: Array, v: Array, threshold: float, terms: int) -> tuple[Array, Array, Array]:
    """Recover a basis of the scores q . k and attend through it; return starts, errors of scores, outputs."""
    starts = conv_basis.conv_recover(q, k, terms=terms, width=WINDOW, threshold=threshold)
    y = ops.conv_attention(q, k, v, starts=starts, scale=1.0)
    return starts, conv_basis.conv_score_error(q, k, starts), y
