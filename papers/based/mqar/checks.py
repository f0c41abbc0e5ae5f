"""Check MQAR by BaseConv layers and by ReLU scores."""

from collections.abc import Callable
from math import ceil

import numpy as np

from papers.based.mqar import base_conv, base_conv_binary, base_conv_by_key, equality, relu_attention
from papers.based.mqar.base_conv_growth import growth
from papers.based.mqar.base_conv_steps import attention, instance, solve
from papers.check import Check, counted, largest_difference, listed
from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.mqar.checks import COUNT, INSTANCES, TOKENS, worst
from papers.zoology.mqar.checks import SIZES as RANDOM
from papers.zoology.mqar.triples import NONE, Triples, binary_rows, draw_any
from papers.zoology.mqar.triples import bits as width_of
from papers.zoology.primitives.one_hot import binary

SIZES = ((1, 1), (5, 3), (8, 8), (7, 12), (16, 16))
"""(N, d); the layers in the rows are those of the last one."""


def checks(seed: int = 0) -> list[Check]:
    """Check Based, theorems F.5 and F.7 and propositions F.2 and F.3."""
    return [*one_hot_tokens(seed), size(), *binary_tokens(seed), relu_scores(seed)]


def one_hot_tokens(seed: int) -> list[Check]:
    """Check theorem F.7: as matrices, as layers, and the shorter way."""
    rng = np.random.default_rng(seed)
    by_position, last = _by_size(base_conv.solver)
    by_key, last_by_key = _by_size(base_conv_by_key.solver)
    length, tokens = SIZES[-1]
    sizes = f"(N, d) = {listed(SIZES)}"
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
            error=one_hot_error(rng, by_position),
            **counted(last),
            layer_bound=f"5 + ceil(log2 b) + ceil(log2 b') = {base_conv.layers(length, tokens)}",
        ),
        Check(
            statement="MQAR with one look-up: layers that do not grow with N",
            source="Based, theorem F.7 (ours)",
            checked="values written under their keys against C * (Q K^T) V",
            sizes=sizes,
            error=one_hot_error(rng, by_key),
            **counted(last_by_key),
            layer_bound=f"4 + ceil(log2 log2 {tokens}) = {base_conv_by_key.layers(tokens)}",
        ),
    ]


Solver = Callable[[Matrix, Matrix, Matrix], Matrix]
"""Answers to q, k, v."""


def _by_size(solver: Callable[[int, int], Stack]) -> tuple[Solver, Stack]:
    """Build the stacks of all sizes; return what applies the one that fits, and the last of them."""
    stacks = {size: solver(*size) for size in SIZES}
    return lambda q, k, v: stacks[q.shape](np.hstack([q, k, v]), q.shape), stacks[SIZES[-1]]


def one_hot_error(rng: np.random.Generator, answer: Solver) -> float:
    """Return the largest difference from the direct answer over five instances of every size."""
    instances = [instance(rng, *size) for size in SIZES for _ in range(5)]
    return max(largest_difference(answer(q, k, v), attention(q, k, v)) for q, k, v in instances)


def size() -> Check:
    """Check the theorem's sizes up to a million tokens, by the formulas."""
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
    """Check theorem F.5's bound, reached except for two layers, and proposition F.3."""
    rng = np.random.default_rng(seed)
    length, bits = 7, 3
    stack, pairs = base_conv_binary.solver(length, bits), base_conv_binary.solver(2, bits, strict=True)
    inputs = [rng.integers(0, 2, size=(3, length, bits)).astype(np.float64) for _ in range(5)]
    outputs = [stack(np.hstack(tuple(qkv)), (length, bits)) for qkv in inputs]
    expected = [base_conv_binary.recall(*qkv) for qkv in inputs]
    tokens = binary(np.arange(2**bits), bits)
    return [
        Check(
            statement="MQAR over tokens of a bits in 2 layers more than needed",
            source="Based, theorem F.5 (ours)",
            checked="one stack on [Q | K | V] against the sum of matching values",
            sizes=f"N = {length}, a = {bits}, 5 random inputs",
            error=largest_difference(np.stack(outputs), np.stack(expected)),
            **counted(stack),
            layer_bound=f">= ceil(log2(2 a + 1)) = {base_conv_binary.layers_needed(bits)}",
        ),
        Check(
            statement="A solver of MQAR decides equality with the same layers",
            source="Based, proposition F.3",
            checked="pairs of tokens that are decided wrongly",
            sizes=f"all {len(tokens) ** 2} pairs of {bits} bits",
            error=float(equality.mistakes(pairs, tokens, value=np.ones(bits))),
            **counted(pairs),
            layer_bound=f">= log2(2 a) = {np.log2(2 * bits):.1f}",
        ),
    ]


def relu_scores(seed: int) -> Check:
    """Check proposition F.2."""
    rng = np.random.default_rng(seed)
    instances = [draw_any(rng, COUNT, TOKENS) for _ in range(INSTANCES)]
    return Check(
        statement="ReLU scores and two maps of them give the first match",
        source="Based, proposition F.2",
        checked="signs of the first match's bits, 0 where there is none",
        sizes=RANDOM,
        error=worst(instances, lambda t: relu_attention.solve(binary_rows(t))[2::3], signs),
    )


def signs(triples: Triples) -> np.ndarray:
    """Return the answers' bits as signs, (T, bits), zeros where there is no answer."""
    width = width_of(triples.tokens)
    return np.where(triples.answers[:, None] == NONE, 0, 2 * binary(triples.answers, width) - 1)
