"""The table's rows for MQAR by BaseConv layers."""

from collections.abc import Callable
from math import ceil

import numpy as np

from based_jax.theory.base_conv import Matrix
from based_jax.theory.check import Check, counted
from based_jax.theory.mqar import base_conv, base_conv_binary, base_conv_by_key, equality
from based_jax.theory.mqar.base_conv_growth import growth
from based_jax.theory.mqar.base_conv_steps import attention, instance, solve
from based_jax.theory.primitives.one_hot import binary

SIZES = ((1, 1), (5, 3), (8, 8), (7, 12), (16, 16))
"""(N, d); the layers in the rows are those of the last."""


def checks(seed: int = 0) -> list[Check]:
    """Based, theorems F.5 and F.7 and proposition F.3."""
    return [*one_hot_tokens(seed), size(), *binary_tokens(seed)]


def one_hot_tokens(seed: int) -> list[Check]:
    """Theorem F.7: as matrices, as layers, and the shorter way."""
    rng = np.random.default_rng(seed)
    length, tokens = SIZES[-1]
    by_position = {size: base_conv.solver(*size) for size in SIZES}
    by_key = {size: base_conv_by_key.solver(*size) for size in SIZES}
    sizes = "(N, d) = " + ", ".join(str(size) for size in SIZES)
    return [
        Check(
            statement="MQAR over one-hot tokens by binary codes, eight steps",
            source="Based, theorem F.7 (proof)",
            checked="the steps as matrices against C * (Q K^T) V",
            sizes=sizes,
            error=one_hot_error(rng, solve),
        ),
        Check(
            statement="MQAR over one-hot tokens in O(log log N) layers",
            source="Based, theorem F.7",
            checked="one stack on [Q | K | V] against C * (Q K^T) V",
            sizes=sizes,
            error=one_hot_error(rng, lambda q, k, v: by_position[q.shape](np.hstack([q, k, v]), q.shape)),
            **counted(by_position[length, tokens].account),
            layer_bound=f"5 + ceil(log2 b) + ceil(log2 b') = {base_conv.layers(length, tokens)}",
        ),
        Check(
            statement="MQAR with one look-up: layers that do not grow with N",
            source="Based, theorem F.7 (ours)",
            checked="values written under their keys against C * (Q K^T) V",
            sizes=sizes,
            error=one_hot_error(rng, lambda q, k, v: by_key[q.shape](np.hstack([q, k, v]), q.shape)),
            **counted(by_key[length, tokens].account),
            layer_bound=f"4 + ceil(log2 log2 {tokens}) = {base_conv_by_key.layers(tokens)}",
        ),
    ]


def one_hot_error(rng: np.random.Generator, answer: Callable[[Matrix, Matrix, Matrix], Matrix]) -> float:
    """The largest difference from the direct answer over five instances of every size."""
    instances = [instance(rng, *size) for size in SIZES for _ in range(5)]
    return max(float(np.abs(answer(q, k, v) - attention(q, k, v)).max()) for q, k, v in instances)


def size() -> Check:
    """The theorem's sizes up to a million tokens, by the formulas."""
    rows = [growth(2**k) for k in range(3, 21)]
    too_wide = max(row.width / (4 * row.bound) - 1 for row in rows)
    too_deep = max(row.by_position - 5 - 2 * ceil(np.log2(np.log2(row.tokens) + 1)) for row in rows)
    return Check(
        statement="MQAR's layers, on an inner matrix of N x O(N log N)",
        source="Based, theorem F.7",
        checked="columns <= 4 N log2 N, layers <= 5 + 2 ceil(log2(log2 N + 1))",
        sizes="N = d = 8..2^20",
        error=max(0.0, too_wide, too_deep),
        layers=rows[-1].by_position,
        layer_bound="5 + 2 ceil(log2 21) = 15",
    )


def binary_tokens(seed: int) -> list[Check]:
    """Theorem F.5's bound, reached but for two layers, and proposition F.3."""
    rng = np.random.default_rng(seed)
    length, bits = 7, 3
    stack = base_conv_binary.solver(length, bits)
    inputs = [rng.integers(0, 2, size=(3, length, bits)).astype(np.float64) for _ in range(5)]
    errors = [
        np.abs(stack(np.hstack([q, k, v]), (length, bits)) - base_conv_binary.recall(q, k, v)).max()
        for q, k, v in inputs
    ]
    pairs = base_conv_binary.solver(2, bits, strict=True)
    tokens = binary(np.arange(2**bits), bits)
    return [
        Check(
            statement="MQAR over tokens of a bits in 2 layers more than needed",
            source="Based, theorem F.5 (ours)",
            checked="one stack on [Q | K | V] against the sum of matching values",
            sizes=f"N = {length}, a = {bits}, 5 random inputs",
            error=float(max(errors)),
            **counted(stack.account),
            layer_bound=f">= ceil(log2(2 a + 1)) = {base_conv_binary.layers_needed(bits)}",
        ),
        Check(
            statement="A solver of MQAR decides equality with the same layers",
            source="Based, proposition F.3",
            checked="pairs of tokens that are decided wrongly",
            sizes=f"all {len(tokens) ** 2} pairs of {bits} bits",
            error=float(equality.mistakes(pairs, tokens, value=np.ones(bits))),
            **counted(pairs.account),
            layer_bound=f">= log2(2 a) = {np.log2(2 * bits):.1f}",
        ),
    ]
