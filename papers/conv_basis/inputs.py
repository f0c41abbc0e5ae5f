"""Make queries and keys with scores of known structure, and without any, in float64 NumPy.

Most structured ones are rotating vectors. With M frequencies theta and complex vectors u and w of length M,

    q_i = e^{i theta} u,  k_j = e^{j theta} w_seg(j)      q_i . k_j = Re sum_m e^{(i-j) theta_m} u_m conj(w_m)

written as 2 M real numbers. The score depends on the lag i - j and on j's segment: a k-conv basis in few
dimensions. The paper's examples (Gu et al., "Conv-Basis", lemmas A.18 to A.25) are its special cases with one
segment, whose scores are Toeplitz. Rotary embeddings have these frequencies, but make scores Toeplitz only
where queries and keys do not depend on the token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from based_jax.typing import Float, Int


@dataclass(frozen=True)
class Inputs:
    """One head's queries and keys, (N, K) each; the scores are q . k."""

    q: Float[np.ndarray, "N K"]
    k: Float[np.ndarray, "N K"]
    starts: Int[np.ndarray, " k"] | None = None  # starts of the segments without noise; None: there are none
    noise: float = 0.0  # largest error of a score


def turning(
    frequencies: Float[np.ndarray, " M"], u: np.ndarray, w: np.ndarray, starts: Sequence[int], length: int
) -> Inputs:
    """Apply the module's formula; u (M,) and w (segments, M) are complex."""
    waves = np.exp(1j * np.arange(length)[:, None] * frequencies)
    segment = np.searchsorted(starts, np.arange(length), side="right") - 1
    return Inputs(_real(waves * u), _real(waves * w[segment]), np.asarray(starts, np.int32))


def rotary_segments(rng: np.random.Generator, length: int, width: int, segments: int = 4) -> Inputs:
    """Draw one query and one key per segment, at random starts at least 8 apart, under rotary embeddings."""
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    least = 8 * np.arange(1, segments)
    others = least + np.sort(rng.choice(length - 8 * segments, segments - 1, replace=False))
    u, *w = _complex(rng, 1 + segments, width // 2)
    return turning(frequencies, u * width**-0.5, np.stack(w), [0, *others.tolist()], length)


def noisy_rotary_segments(
    rng: np.random.Generator, length: int, width: int, noise: float = 0.01, segments: int = 4
) -> Inputs:
    """Add random queries to `rotary_segments`, so that the largest error of a score is `noise`."""
    clean = rotary_segments(rng, length, width, segments)
    more = rng.normal(size=clean.q.shape)
    more *= noise / np.abs(np.tril(more @ clean.k.T)).max()
    return Inputs(clean.q + more, clean.k, clean.starts, noise)


def loud_rotary_segments(rng: np.random.Generator, length: int, width: int, factor: float = 20.0) -> Inputs:
    """Multiply the scores of `rotary_segments` by `factor`: sums of exponentials differ by powers of ten."""
    quiet = rotary_segments(rng, length, width)
    return Inputs(factor * quiet.q, quiet.k, quiet.starts)


def complex_exponential(rng: np.random.Generator, length: int, width: int) -> Inputs:
    """x_i = e^{i theta} z with a random complex z; q = k = x (lemma A.18)."""
    (z,) = _complex(rng, 1, width // 2)
    return _same(rng.uniform(0.1, 3.0, 1), 2 * z / np.linalg.norm(z), length)


def cos_and_sin(rng: np.random.Generator, length: int, width: int) -> Inputs:
    """x_i = 2 (cos i theta, sin i theta), for any width; q = k = x (lemma A.19)."""
    return _same(rng.uniform(0.1, 3.0, 1), np.full(1, 2.0 + 0j), length)


def orthonormal(rng: np.random.Generator, length: int, width: int) -> Inputs:
    """Cosines and sines of several amplitudes along the axes of a random basis; q = k (lemma A.20).

    An odd width also has a constant.
    """
    amplitudes = rng.uniform(0.5, 1.5, (width + 1) // 2)
    amplitudes *= 2 / np.linalg.norm(amplitudes)
    frequencies = rng.uniform(0.1, 3.0, len(amplitudes))
    if width % 2:
        frequencies[-1] = 0
    x = _same(frequencies, amplitudes + 0j, length).q[:, :width]  # drop the constant's sine, which is 0
    basis, _ = np.linalg.qr(rng.normal(size=(width, width)))
    return Inputs(x @ basis, x @ basis, np.zeros(1, np.int32))


def orthonormal_odd(rng: np.random.Generator, length: int, width: int) -> Inputs:
    """`orthonormal` with one dimension less."""
    return orthonormal(rng, length, width - 1)


def toeplitz(rng: np.random.Generator, length: int, width: int) -> Inputs:
    """Draw different queries and keys: scores are Toeplitz but not symmetric (lemma A.22)."""
    u, w = _complex(rng, 2, width // 2) * width**-0.25
    return turning(rng.uniform(0.1, 3.0, width // 2), u, w[None], [0], length)


def circulant(rng: np.random.Generator, length: int, width: int) -> Inputs:
    """Use harmonics of the length as frequencies: scores are circulant, of rank `width` (lemma A.21)."""
    harmonics = rng.choice(np.arange(1, length // 2), width // 2, replace=False)
    u, w = _complex(rng, 2, width // 2) * width**-0.25
    return turning(2 * np.pi * harmonics / length, u, w[None], [0], length)


def positive_semidefinite(rng: np.random.Generator, length: int, width: int) -> Inputs:
    """q = x W_Q, k = x W_K with W_Q W_K^T = A A^T, where the rows of x A are `orthonormal` (A.23 to A.25)."""
    z = orthonormal(rng, length, width).q
    a, wq = rng.normal(size=(2, width, width)) + np.sqrt(width) * np.eye(width)
    x = np.linalg.solve(a.T, z.T).T
    wk = np.linalg.solve(wq, a @ a.T).T
    return Inputs(x @ wq, x @ wk, np.zeros(1, np.int32))


def linear_bias(rng: np.random.Generator, length: int, width: int) -> Inputs:
    """Scores (j - i) / 16 from two dimensions, without randomness: ALiBi's bias without content."""
    position, one = np.arange(length) / 16, np.ones(length)
    q, k = np.stack([-position, one], axis=1), np.stack([one, position], axis=1)
    return Inputs(q, k, np.zeros(1, np.int32))


def gaussian(rng: np.random.Generator, length: int, width: int) -> Inputs:
    """Draw independent tokens with scores of variance 1: no structure to find."""
    q, k = rng.normal(size=(2, length, width)) * width**-0.25
    return Inputs(q, k)


def autoregressive(rng: np.random.Generator, length: int, width: int, rho: float = 0.95) -> Inputs:
    """Like `gaussian`, but each token resembles the one before it: x_i = rho x_{i-1} + noise."""
    q, k = rng.normal(size=(2, length, width)) * width**-0.25
    for i in range(1, length):
        for x in (q, k):
            x[i] = rho * x[i - 1] + np.sqrt(1 - rho**2) * x[i]
    return Inputs(q, k)


Draw = Callable[[np.random.Generator, int, int], Inputs]

STRUCTURED: Mapping[str, Draw] = {
    "rotary, 4 keys": rotary_segments,
    "rotary, 4 keys, noise 0.01": noisy_rotary_segments,
    "rotary, 4 keys, scores times 20": loud_rotary_segments,
    "complex exponential (A.18)": complex_exponential,
    "cosine and sine (A.19)": cos_and_sin,
    "orthonormal, even width (A.20)": orthonormal,
    "orthonormal, odd width (A.20)": orthonormal_odd,
    "circulant (A.21)": circulant,
    "Toeplitz (A.22)": toeplitz,
    "W_Q W_K^T p.s.d. (A.23-25)": positive_semidefinite,
    "linear bias by distance": linear_bias,
}
"""Inputs with segments to find, by title"""


def _same(frequencies: np.ndarray, x: np.ndarray, length: int) -> Inputs:
    return turning(frequencies * np.ones(len(x)), x, x[None], [0], length)


def _complex(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=(*shape, 2)) @ np.array([1, 1j])


def _real(x: np.ndarray) -> np.ndarray:
    """Convert (N, M) complex to (N, 2 M) real: real parts, then imaginary parts."""
    return np.concatenate([np.real(x), np.imag(x)], axis=1)
