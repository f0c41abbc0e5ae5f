"""Based's Taylor attention in torch, in its quadratic view and in chunks; q, k, v are (..., N, dim).

y_i = sum_{j <= i} w_ij v_j / sum_{j <= i} w_ij,   w_ij = 1 + s + s^2 / 2,   s = q_i . k_j / sqrt(K)
"""

import torch

CHUNK = 128
"""Tokens per chunk of `chunked`."""

EPS = 1e-12


def quadratic(q, k, v):
    """Attend with all N x N weights, the faster form of short sequences."""
    weights = _weights(q, k)
    return weights @ v / (weights.sum(-1, keepdim=True) + EPS)


def chunked(q, k, v):
    """Attend in time linear in N, a multiple of `CHUNK` unless it is shorter.

    Within a chunk queries have weights for its keys; the keys before it are in running sums of outer
    products of features and values. All chunks are computed together, as torch has no fused scan.
    A column of ones next to the values gives the normaliser.
    """
    q, k, v = (x.unflatten(-2, (-1, min(CHUNK, x.shape[-2]))) for x in (q, k, v))
    v = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
    sums = features(k).mT @ v
    y = _weights(q, k) @ v + features(q) @ (sums.cumsum(-3) - sums)
    return (y[..., :-1] / (y[..., -1:] + EPS)).flatten(-3, -2)


def features(x):
    """Return features whose products are the weights: [1, x, vec(x x^T) / sqrt(2)], x scaled by K^(-1/4).

    Eager torch keeps one of x_m x_n and x_n x_m, which saves products. `torch.compile` keeps both: it writes
    the triangle's slices so slowly that the whole takes four times as long (4,096 tokens, 4 heads).
    """
    width = x.shape[-1]
    x = x * width**-0.25
    linear = (torch.ones_like(x[..., :1]), x)
    if torch.compiler.is_compiling():
        return torch.cat((*linear, (x[..., None] * x[..., None, :] * 2**-0.5).flatten(-2)), dim=-1)
    triangle = [x[..., m : m + 1] * x[..., :m] for m in range(1, width)]
    return torch.cat((*linear, x * x * 2**-0.5, *triangle), dim=-1)


def _weights(q, k):
    s = q @ k.mT * q.shape[-1] ** -0.5
    return (1 + s + s * s / 2).tril()


FORMS = {False: quadratic, True: chunked}
"""Whether chunks are taken -> the function."""
