"""Construct weights that represent given interactions: exactly, of low rank, and for `environments`.

Embeddings are tables (S, d). With weights C and W a layer computes the table of interactions
(B C B^T) * (B W)^T for the table B, so linearly independent rows (d >= S) suffice for any interactions
(Ustaomeroglu & Qu 2025, theorem 3.1), and some interactions need them: `rank_bound`.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from based_jax.typing import Float
from papers.hyper_self_attention.interactions import embeddings, environments
from papers.hyper_self_attention.interactions.data import Interactions
from papers.hyper_self_attention.interactions.transform import on_axes


class Weights(NamedTuple):
    """Weights of a layer: C of the scores and W of the values, (d, d) and (d, d2) for self-attention."""

    c: np.ndarray
    w: np.ndarray


def exact(
    f: Float[np.ndarray, " S *entities"],
    w: Float[np.ndarray, "*entities d2"],
    table: Float[np.ndarray, "S d"],
) -> Weights:
    """Return weights that represent y = sum f(x_i, x_j, ...) w(x_j, ...) without error, at any length.

    For self-attention f is (S, S) and w (S, d2) (theorem 3.1). For HyperAttention of order n they have n and
    n - 1 axes of symbols, in the mode whose tuples the sum runs over; theorem G.4 sums over "all". The rows
    of `table` must be linearly independent. C[x_a, x_b, ...] = f[a, b, ...] and W[x_b, ...] = w[b, ...] as
    multilinear forms: C = B^T F B for orthonormal rows.
    """
    inverse = np.linalg.pinv(table)
    return Weights(on_axes(inverse, f, f.ndim), on_axes(inverse, w, f.ndim - 1))


def change_basis(weights: Weights, q: Float[np.ndarray, "d d"]) -> Weights:
    """Return weights of the same function for embeddings x' = Q x with an orthogonal Q (corollary B.1)."""
    return Weights(q @ weights.c @ q.T, q @ weights.w)


class Approximation(NamedTuple):
    """A narrow embedding, its weights, and a bound of their error."""

    table: Float[np.ndarray, "S d"]
    weights: Weights
    error_per_entity: float  # outputs err by at most L times this, in the Euclidean norm


def low_rank(interactions: Interactions, rank: int) -> Approximation:
    """Construct self-attention narrower than S from the `rank` leading singular vectors of f.

    The paper bounds the error at width d by the singular value of f after the d-th (theorem B.2). That is
    false: scores and values share the columns of one embedding (`printed_counter_example`). The bound holds
    with the columns that both need, left and right singular vectors of f and the range of w: with
    d <= 2 rank + rank(w), |y - y*| <= L max_b |w_b| sigma_{rank+1}(f).
    """
    f, w = interactions.f, interactions.w
    left, values, right = np.linalg.svd(f)
    kept = (left[:, :rank] * values[:rank]) @ right[:rank]
    table = _orthonormal(np.concatenate([left[:, :rank], right[:rank].T, _orthonormal(w)], axis=1))
    rest = values[rank] if rank < len(f) else 0.0
    error = float(rest * np.linalg.norm(w, axis=1).max())
    return Approximation(table, Weights(table.T @ kept @ table, table.T @ w), error)


def printed_counter_example() -> Interactions:
    """Return interactions of rank 1 that no embedding of width 1 represents, against theorem B.2 as printed.

    The table that a layer of width 1 computes is k [[p^3, p q^2], [q p^2, q^3]]: an off-diagonal entry never
    exceeds both diagonal entries, so none is closer than 1/2 to [[0, 1], [0, 0]] everywhere.
    """
    return Interactions(np.array([[0.0, 1.0], [0.0, 0.0]]), np.ones((2, 1)))


def rank_bound(interactions: Interactions, width: int) -> float:
    """Return a lower bound of the error, in the Frobenius norm, of any self-attention of this width.

    For each output the table that a layer computes has rank <= width, so its distance from the target is at
    least that of the best such table (Eckart & Young): for f = identity and w = 1 sqrt(S - width), which
    shows that theorem 3.1 needs d >= S.
    """
    tables = np.moveaxis(interactions.f[..., None] * interactions.w, -1, 0)
    return float(np.linalg.norm(np.linalg.svd(tables, compute_uv=False)[:, width:]))


def relative(values: Float[np.ndarray, " N"], orthonormal: bool = True) -> Float[np.ndarray, "N N"]:
    """Return the bilinear form of a function of the difference of positions on a circle (theorem B.6).

    p_i^T C p_j = values[(i - j) mod N] for sinusoidal embeddings p. C has a block [[a, b], [-b, a]] for each
    frequency k: a = 2 Re F_k, b = -2 Im F_k with F the discrete Fourier transform divided by N (definition
    B.3 leaves the division out). An even function has a diagonal C. N, the number of differences, is even.
    """
    size = len(values)
    spectrum = np.fft.fft(values) / size
    even, odd = 2 * spectrum.real, -2 * spectrum.imag
    c = np.zeros((size, size))
    c[0, 0], c[-1, -1] = even[0], even[size // 2]
    sine = np.arange(1, size - 1, 2)
    cosine, frequency = sine + 1, np.arange(1, size // 2)
    c[sine, sine] = c[cosine, cosine] = even[frequency]
    c[sine, cosine], c[cosine, sine] = odd[frequency], -odd[frequency]
    return c * (size / 2) if orthonormal else c


def sinusoidal_collisions(radius: int, size: int, orthonormal: bool = True) -> Weights:
    """Return weights of `environments.collisions` for sinusoidal embeddings: a diagonal C (appendix B).

    The window |i - j| <= 2 radius has the spectrum sin(2 pi (2 radius + 1/2) k / N) / sin(pi k / N), and
    the constant column of the embedding carries W. N = `size` is even and more than 4 `radius`.
    """
    frequency = np.repeat(np.arange(1, size // 2 + 1), 2)[: size - 1]
    half = np.pi / size * frequency
    window = np.sin((4 * radius + 1) * half) / np.sin(half)
    c = np.diag(np.concatenate([[4 * radius + 1], window])) * (2 / size)
    w = np.zeros((size, 1))
    w[0] = -np.sqrt(2)
    scale = size / 2 if orthonormal else 1.0
    return Weights(c * scale, w * np.sqrt(scale))


def relative_on_grid(
    values: Float[np.ndarray, "N M"], orthonormal: bool = True
) -> Float[np.ndarray, "N*M N*M"]:
    """Return the bilinear form of a function of both differences of positions on a torus (section 3, app. B).

    p_i^T C p_j = values[(x_i - x_j) mod N, (y_i - y_j) mod M] for p = p^x (x) p^y, the Kronecker products of
    sinusoidal embeddings, coded as by `embeddings.product`: a two-dimensional Fourier series, so C is a sum
    of Kronecker products of the blocks of `relative`, and diagonal for a function that is even in each axis.
    """
    first, second = (np.stack([relative(one, orthonormal) for one in np.eye(n)]) for n in values.shape)
    c = np.einsum("nm,nac,mbd->abcd", values, first, second, optimize=True)
    return c.reshape(values.size, values.size)


def sinusoidal_collisions_on_grid(
    radius: int, neighbourhood: float, size: int
) -> tuple[Float[np.ndarray, "S d"], Weights]:
    """Return orthonormal embeddings, and weights of `environments.collisions_on_grid` for them: a diagonal C.

    The embeddings are products of sinusoidal ones. The paper's p^x (x) p^y has width N^2 and wraps both axes.
    In this environment only y wraps, so x is embedded on a circle of 2 N cells, half of them empty, where no
    two differences coincide: d = 2 N^2.
    """
    table = embeddings.product(embeddings.sinusoidal(2 * size)[:size], embeddings.sinusoidal(size))
    across, around = (environments.circular_distance(n)[0] for n in (2 * size, size))
    near = np.hypot(across[:, None], around) <= neighbourhood
    w = np.zeros((table.shape[1], 1))
    w[0] = -np.sqrt(table.shape[1])  # the constant column is one over this
    return table, Weights(relative_on_grid((around <= 2 * radius) * (1.0 + 9 * near)), w)


def embed_agents(agents: environments.Agents, size: int) -> Float[np.ndarray, "... L d"]:
    """Concatenate one-hot features: species, policy, x, y and the diagonal x - y; d = 3 + 4 size.

    The paper has no diagonal; without it no product of forms of x and of y can test whether dx = dy.
    """
    diagonal = agents.x - agents.y + size - 1
    values = (agents.species, agents.policy, agents.x, agents.y, diagonal)
    return np.concatenate([np.eye(n)[v] for n, v in zip(_agent_sizes(size), values, strict=True)], axis=-1)


def embed_series(series: Float[np.ndarray, "T m"]) -> Float[np.ndarray, "T+1 m+T+1"]:
    """Embed each value of a series as [value, one-hot time], and a query [0, T] for the next one."""
    return np.concatenate([np.pad(series, ((0, 1), (0, 0))), np.eye(len(series) + 1)], axis=-1)


def autoregression(weights: Mapping[int, float], matrix: Float[np.ndarray, "m m"], length: int) -> Weights:
    """Construct self-attention for `environments.time_series` of T = `length` values: m_t from values before.

    Embeddings are those of `embed_series`.
    """
    delays = sum(weight * np.eye(length + 1, k=-lag) for lag, weight in weights.items())
    width = len(matrix)
    c = np.pad(delays, ((width, 0), (width, 0)))
    return Weights(c, np.pad(matrix.T, ((0, length + 1), (0, 0))))


def _agent_sizes(size: int) -> tuple[int, ...]:
    return 2, 2, size, size, 2 * size - 1


def _orthonormal(columns: Float[np.ndarray, "S n"]) -> Float[np.ndarray, "S rank"]:
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    tolerance = np.finfo(float).eps * max(columns.shape) * values.max(initial=0)
    return left[:, values > tolerance]
