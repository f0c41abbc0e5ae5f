"""Draw random layers to simulate, whose entries keep inputs of order 1 at that order."""

import numpy as np

from papers.zoology.base_conv import Layer, Matrix
from papers.zoology.simulations.h3 import H3
from papers.zoology.simulations.hyena import Hyena
from papers.zoology.simulations.linear_attention import LinearAttention
from papers.zoology.simulations.retnet import RetNet
from papers.zoology.simulations.rwkv import RWKV, decay_filters

Rng = np.random.Generator


def random_hyena(rng: Rng, order: int, length: int, width: int, short: bool = True) -> Hyena:
    """Return a Hyena whose filters, the short one included, are as long as the sequence."""
    gates = np.stack([weights(rng, width, width) for _ in range(order)])
    long = np.stack([weights(rng, length, width) for _ in range(order)])
    return Hyena(gates, weights(rng, width, width), long, weights(rng, length, 1) if short else None)


def random_layer(rng: Rng, length: int, width: int) -> Layer:
    """Return a BaseConv layer with biases."""
    bias_1, bias_2 = rng.normal(size=(2, length, width))
    return Layer(weights(rng, width, width), bias_1, weights(rng, length, width), bias_2)


def random_h3(rng: Rng, length: int, width: int) -> H3:
    """Return an H3 whose filters are as long as the sequence."""
    return H3(*(weights(rng, rows, width) for rows in (width, width, width, length, length)))


def random_rwkv(rng: Rng, length: int, width: int) -> RWKV:
    """Return an RWKV with its own filters: two taps of the token shift, and a bonus before a decay."""
    share = rng.uniform(size=width)
    shift = np.zeros((length, width))
    shift[:2] = np.stack([share, 1 - share])[:length]
    decay = decay_filters(length, -rng.uniform(size=width), rng.normal(size=width))
    return RWKV(weights(rng, width, width), shift, decay)


def random_retnet(rng: Rng, width: int) -> RetNet:
    """Return a head whose decay is 0.5 to 1."""
    keys, queries, values = (weights(rng, width, width) for _ in range(3))
    return RetNet(keys, queries, values, float(rng.uniform(0.5, 1)))


def random_linear_attention(
    rng: Rng, width: int, size: int, causal: bool = True, square: float = 1.0
) -> LinearAttention:
    """Return a head with d = `width` and d' = `size`."""
    queries, keys = weights(rng, width, size), weights(rng, width, size)
    return LinearAttention(queries, keys, weights(rng, width, width), causal, square)


def weights(rng: Rng, rows: int, columns: int) -> Matrix:
    """Return a projection of `rows` channels to `columns`, or `columns` filters of `rows` taps."""
    return rng.normal(size=(rows, columns)) / np.sqrt(rows)
