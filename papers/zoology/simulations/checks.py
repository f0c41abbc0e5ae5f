"""Check the layers that BaseConv simulates."""

from dataclasses import replace
from math import log2

import numpy as np

from papers.check import Check, counted, largest_difference
from papers.zoology.base_conv import Matrix, Stack, stack
from papers.zoology.simulations import butterfly_checks, instances
from papers.zoology.simulations.h3 import h3_by_columns
from papers.zoology.simulations.hyena import hyena_by_columns
from papers.zoology.simulations.hyena_of_base_conv import (
    hyena_of_base_conv,
    with_positions,
    without_positions,
)
from papers.zoology.simulations.hyena_rows import hyena_by_rows
from papers.zoology.simulations.linear_attention import linear_attention_by_columns
from papers.zoology.simulations.retnet import retnet_by_columns
from papers.zoology.simulations.rwkv import rwkv_by_columns

ORDER, LENGTH, WIDTH, SIZE = 4, 16, 4, 3
"""L, N, d and d' of the instances."""

SIZES = f"N = {LENGTH}, d = {WIDTH}"


def checks(seed: int = 0) -> list[Check]:
    """Check Zoology, H.12 to H.18, H.22 and the definitions before; Based, F.1."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(LENGTH, WIDTH))
    causal, full = (_linear_attention(rng, u, causal) for causal in (True, False))
    others = [_base_conv(rng, u), _h3(rng, u), _rwkv(rng, u), _retnet(rng, u), full, causal]
    return [*_hyena(rng, u), *others, *butterfly_checks.checks(seed)]


def _hyena(rng: np.random.Generator, u: Matrix) -> list[Check]:
    hyena = instances.random_hyena(rng, ORDER, LENGTH, WIDTH)
    statement = "A Hyena of order L is L + {} BaseConv layers, with u {} z"
    source, sizes, bound = "Zoology, proposition H.12", f"L = {ORDER}, {SIZES}", f"5 L = {5 * ORDER}"
    return [
        _row(statement.format(*way), source, "the recursion", simulated, simulated(u), hyena(u), sizes, bound)
        for way, simulated in (((2, "beside"), hyena_by_columns(hyena)), ((3, "below"), hyena_by_rows(hyena)))
    ]


def _base_conv(rng: np.random.Generator, u: Matrix) -> Check:
    layers = [instances.random_layer(rng, LENGTH, WIDTH) for _ in range(ORDER)]
    y = with_positions(u)
    for layer in layers:
        y = hyena_of_base_conv(layer)(y)
    return Check(
        statement="A BaseConv layer is a Hyena of order 1, given the positions",
        source="Zoology, proposition H.12, converse",
        checked="layers with biases against as many Hyenas, one after the other",
        sizes=f"L = {ORDER}, {SIZES}",
        error=largest_difference(without_positions(y), stack(layers)(u)),
        layers=ORDER,
        layer_bound=f"L = {ORDER}",
    )


def _h3(rng: np.random.Generator, u: Matrix) -> Check:
    h3 = instances.random_h3(rng, LENGTH, WIDTH)
    simulated = h3_by_columns(h3)
    statement = "H3 is three BaseConv layers: a Hyena of order 2"
    source = "Zoology, H.1.2 (gated convolutions)"
    return _row(statement, source, "the equation", simulated, simulated(u), h3(u))


def _rwkv(rng: np.random.Generator, u: Matrix) -> Check:
    rwkv = instances.random_rwkv(rng, LENGTH, WIDTH)
    weights, receptance = np.exp(rng.normal(size=u.shape)), rng.uniform(size=u.shape)
    simulated = rwkv_by_columns(rwkv)
    y = simulated(np.concatenate([weights, u, receptance], axis=1))[:, : 2 * WIDTH]
    expected = np.concatenate(rwkv(weights, u, receptance), axis=1)
    statement = "RWKV is three BaseConv layers between exp, sigmoid and a division"
    return _row(statement, "Zoology, algorithm 5", "both convolutions", simulated, y, expected)


def _retnet(rng: np.random.Generator, u: Matrix) -> Check:
    retnet = instances.random_retnet(rng, WIDTH)
    simulated = retnet_by_columns(retnet, LENGTH)
    statement = "RetNet is four BaseConv layers, however long the sequence"
    both, bound = np.stack([simulated(u), retnet.parallel(u)]), f"O(N log d), {LENGTH * log2(WIDTH):.0f}"
    row = _row(statement, "Zoology, corollary H.22", "", simulated, both, retnet(u), bound=bound)
    checked = f"the recurrence against its parallel form and {_layers(simulated)}"
    return replace(row, checked=checked, parameter_bound=f"O(N d), {LENGTH * WIDTH}")


def _linear_attention(rng: np.random.Generator, u: Matrix, causal: bool) -> Check:
    attention = instances.random_linear_attention(rng, WIDTH, SIZE, causal)
    simulated = linear_attention_by_columns(attention, LENGTH)
    kind, source = "Causal linear" if causal else "Linear", "Based, proposition F.1"
    statement = f"{kind} attention with Taylor features is five layers"
    sizes, bound = f"{SIZES}, d' = {SIZE}", f"O(log^2(N d)), {log2(LENGTH * WIDTH) ** 2:.0f}"
    return _row(statement, source, "all pairs of tokens", simulated, simulated(u), attention(u), sizes, bound)


def _row(
    statement: str,
    source: str,
    compared: str,
    simulated: Stack,
    y: Matrix,
    expected: Matrix,
    sizes: str = SIZES,
    bound: str = "",
) -> Check:
    error, fields = largest_difference(y, expected), counted(simulated)
    checked = f"{compared} against {_layers(simulated)}"
    return Check(statement, source, checked, sizes, error, **fields, layer_bound=bound)


def _layers(simulated: Stack) -> str:
    return f"layers on {simulated.shape[0]} x {simulated.shape[1]}"
