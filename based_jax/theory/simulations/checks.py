"""The rows of the table for the layers that BaseConv simulates."""

import math

import numpy as np

from based_jax.theory.base_conv import Account, Matrix, stack
from based_jax.theory.check import Check, counted
from based_jax.theory.simulations import instances
from based_jax.theory.simulations.h3 import h3_by_columns
from based_jax.theory.simulations.hyena import hyena_by_columns
from based_jax.theory.simulations.hyena_of_base_conv import (
    hyena_of_base_conv,
    with_positions,
    without_positions,
)
from based_jax.theory.simulations.hyena_rows import hyena_by_rows
from based_jax.theory.simulations.linear_attention import linear_attention_by_columns
from based_jax.theory.simulations.retnet import retnet_by_columns
from based_jax.theory.simulations.rwkv import rwkv_by_columns

ORDER, LENGTH, WIDTH, SIZE = 4, 16, 4, 3
"""L, N, d and d' of the instances."""

SIZES = f"N = {LENGTH}, d = {WIDTH}"


def checks(seed: int = 0) -> list[Check]:
    """Zoology, H.12, H.22 and the definitions before; Based, F.1."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(LENGTH, WIDTH))
    causal, full = (_linear_attention(rng, u, causal) for causal in (True, False))
    return [*_hyena(rng, u), _base_conv(rng, u), _h3(rng, u), _rwkv(rng, u), _retnet(rng, u), full, causal]


def _hyena(rng: np.random.Generator, u: Matrix) -> list[Check]:
    hyena = instances.random_hyena(rng, ORDER, LENGTH, WIDTH)
    ways = (
        ("L + 2 BaseConv layers, with u beside z", hyena_by_columns(hyena)),
        ("L + 3 BaseConv layers, with u below z", hyena_by_rows(hyena)),
    )
    return [
        Check(
            statement=f"A Hyena of order L is {way}",
            source="Zoology, proposition H.12",
            checked=f"the recursion against {_shape(stack.account)}",
            sizes=f"L = {ORDER}, {SIZES}",
            error=_off(stack(u), hyena(u)),
            **counted(stack.account),
            layer_bound=f"5 L = {5 * ORDER}",
        )
        for way, stack in ways
    ]


def _base_conv(rng: np.random.Generator, u: Matrix) -> Check:
    layers = [instances.random_layer(rng, LENGTH, WIDTH) for _ in range(ORDER)]
    y = with_positions(u)
    for layer in layers:
        y = hyena_of_base_conv(layer)(y)
    return Check(
        statement="A BaseConv layer is a Hyena of order 1, given the positions",
        source="Zoology, proposition H.12, converse",
        checked="layers with biases against as many Hyenas, one behind the other",
        sizes=f"L = {ORDER}, {SIZES}",
        error=_off(without_positions(y), stack(layers)(u)),
        layers=ORDER,
        layer_bound=f"L = {ORDER}",
    )


def _h3(rng: np.random.Generator, u: Matrix) -> Check:
    h3 = instances.random_h3(rng, LENGTH, WIDTH)
    simulated = h3_by_columns(h3)
    return Check(
        statement="H3 is three BaseConv layers: a Hyena of order 2",
        source="Zoology, H.1.2 (gated convolutions)",
        checked=f"the equation against {_shape(simulated.account)}",
        sizes=SIZES,
        error=_off(simulated(u), h3(u)),
        **counted(simulated.account),
    )


def _rwkv(rng: np.random.Generator, u: Matrix) -> Check:
    rwkv = instances.random_rwkv(rng, LENGTH, WIDTH)
    weights, receptance = np.exp(rng.normal(size=u.shape)), rng.uniform(size=u.shape)
    simulated = rwkv_by_columns(rwkv)
    y = simulated(np.concatenate([weights, u, receptance], axis=1))[:, : 2 * WIDTH]
    return Check(
        statement="RWKV is three BaseConv layers between exp, sigmoid and a division",
        source="Zoology, algorithm 5",
        checked=f"both convolutions against {_shape(simulated.account)}",
        sizes=SIZES,
        error=_off(y, np.concatenate(rwkv(weights, u, receptance), axis=1)),
        **counted(simulated.account),
    )


def _retnet(rng: np.random.Generator, u: Matrix) -> Check:
    retnet = instances.random_retnet(rng, WIDTH)
    simulated, y = retnet_by_columns(retnet, LENGTH), retnet(u)
    return Check(
        statement="RetNet is four BaseConv layers, however long the sequence",
        source="Zoology, corollary H.22",
        checked=f"the recurrence against its parallel form and {_shape(simulated.account)}",
        sizes=SIZES,
        error=max(_off(simulated(u), y), _off(retnet.parallel(u), y)),
        layers=simulated.account.layers,
        layer_bound=f"O(N log d), {LENGTH * math.log2(WIDTH):.0f}",
        parameters=simulated.account.parameters,
        parameter_bound=f"O(N d), {LENGTH * WIDTH}",
    )


def _linear_attention(rng: np.random.Generator, u: Matrix, causal: bool) -> Check:
    attention = instances.random_linear_attention(rng, WIDTH, SIZE, causal)
    simulated = linear_attention_by_columns(attention, LENGTH)
    return Check(
        statement=f"{'Causal linear' if causal else 'Linear'} attention with Taylor features is five layers",
        source="Based, proposition F.1",
        checked=f"all pairs of tokens against {_shape(simulated.account)}",
        sizes=f"{SIZES}, d' = {SIZE}",
        error=_off(simulated(u), attention(u)),
        **counted(simulated.account),
        layer_bound=f"O(log^2(N d)), {math.log2(LENGTH * WIDTH) ** 2:.0f}",
    )


def _shape(account: Account) -> str:
    return f"layers on {account.length} x {account.width}"


def _off(actual: Matrix, expected: Matrix) -> float:
    return float(np.abs(actual - expected).max())
