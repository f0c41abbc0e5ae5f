"""Check the primitives: constructions of one to three layers."""

from collections.abc import Iterator

import numpy as np

from papers.check import Check, counted, largest_difference
from papers.zoology.base_conv import Layer, Matrix, Stack, convolve
from papers.zoology.basic_layers import convolution, gate, linear
from papers.zoology.primitives.columns import (
    column_blocks_summed,
    cumulative_sum,
    repeat_columns,
    repeat_matrix,
    sum_column_blocks,
)
from papers.zoology.primitives.one_hot import binary, code_width, one_hot, one_hot_layers, one_hot_rows
from papers.zoology.primitives.remember import applied, remember, remember_window, rows_needed
from papers.zoology.primitives.shift import add, added, shift_down, shift_up, shifted_down, shifted_up

LENGTH, WIDTH = 12, 6
"""N and d of the instances."""

Case = tuple[Stack, Matrix, Matrix]
"""A stack, its input and the expected output."""

Row = tuple[str, str, str, list[Case]]
"""A statement, its source, the paper's bound on layers, and stacks of one length and shape."""


def checks(seed: int = 0) -> list[Check]:
    """Check Zoology, H.7 to H.11; Based, F.7 to F.13 and corollary F.3."""
    rng = np.random.default_rng(seed)
    rows = [row for rows in (_shifts_and_sums, _columns, _kept) for row in rows(rng)]
    return [*(_check(*row) for row in rows), _one_hot()]


def _shifts_and_sums(rng: np.random.Generator) -> Iterator[Row]:
    u, filters, factors = rng.normal(size=(3, LENGTH, WIDTH))
    weights = rng.normal(size=(WIDTH, WIDTH))
    basic = [
        (linear(u.shape, weights), u, u @ weights),
        (convolution(u.shape, filters), u, convolve(filters, u)),
        (gate(u.shape, factors), u, factors * u),
    ]
    yield "A projection, a convolution and a fixed gate are a layer each", "Zoology, lemma H.7", "1", basic

    u = rng.normal(size=(LENGTH, WIDTH))
    down = [(shift_down(u.shape, by), u, shifted_down(u, by)) for by in range(LENGTH + 1)]
    up = [(shift_up(u.shape, by), u, shifted_up(u, by)) for by in range(LENGTH + 1)]
    yield "A causal layer shifts rows down", "Zoology, H.8 (shift down)", "1", down
    yield "A circular layer shifts rows up", "Zoology, H.8 (shift up)", "3", up

    u = rng.normal(size=(2 * LENGTH, WIDTH))
    case = (add((3 * LENGTH, WIDTH), LENGTH), u, added(u, LENGTH))
    yield "A window is added to a running sum", "Zoology, H.9 (running sum)", "2", [case]

    filters, factors, x = rng.normal(size=(3, LENGTH, WIDTH))
    v = rng.normal(size=(5, WIDTH))
    u = np.concatenate([x, v])
    stack = remember_window((2 * len(u), WIDTH), filters, factors, len(u))
    case = (stack, u, np.concatenate([factors * convolve(filters, x), v]))
    yield "A window is convolved and gated, the rows below are kept", "Zoology, H.10 (remember)", "5", [case]

    u = rng.uniform(-1, 1, size=(LENGTH, WIDTH))
    f, g = _random_stack(rng, LENGTH, 2), _random_stack(rng, LENGTH, 3)
    case = (f.then(g), u, g(f(u)))
    yield "Layers of stacks add up as functions compose", "Zoology, lemma H.11", "2 + 3 = 5", [case]


def _columns(rng: np.random.Generator) -> list[Row]:
    u = rng.normal(size=(LENGTH, WIDTH))
    shape, wide, long = u.shape, (LENGTH, 3 * WIDTH), (3 * LENGTH, WIDTH)
    y = rng.normal(size=wide)
    repeated = (repeat_columns(wide, 3), y, np.repeat(y[:, :WIDTH], 3, axis=1))
    below = (repeat_matrix(long, 3), np.pad(u, ((0, 2 * LENGTH), (0, 0))), np.tile(u, (3, 1)))
    so_far = (cumulative_sum(shape), u, np.cumsum(u, axis=0))
    summed = (sum_column_blocks(shape, 1), u, column_blocks_summed(u, 1))
    blocks = (sum_column_blocks(shape, 2), u, column_blocks_summed(u, 2))
    return [
        ("Columns are repeated in place", "Based, F.7 (repeat columns)", "1", [repeated]),
        ("A matrix is repeated below itself", "Based, F.8 (repeat matrix)", "1", [below]),
        ("Rows are summed up to each row", "Based, F.9 (cumulative sum)", "1", [so_far]),
        ("All columns are summed", "Based, F.10 (sum all columns)", "1", [summed]),
        ("Blocks of columns are summed", "Based, F.11 (sum blocks)", "1", [blocks]),
    ]


def _kept(rng: np.random.Generator) -> list[Row]:
    u = rng.uniform(-1, 1, size=(LENGTH, WIDTH))
    start, size, layers = 3, 5, 4
    stacks = [_random_stack(rng, size, count) for count in (1, layers)]
    one, many = (
        (remember((rows_needed(f, LENGTH), WIDTH), f, start, LENGTH), u, applied(u, f, start)) for f in stacks
    )
    act = "on some rows, those around are kept"
    return [
        (f"A layer acts {act}", "Based, F.13 (remember)", "8", [one]),
        (f"{layers} layers act {act}", "Based, corollary F.3", f"O(L); 8 L = {8 * layers}", [many]),
    ]


def _random_stack(rng: np.random.Generator, length: int, layers: int) -> Stack:
    """Return layers that preserve the order of magnitude."""

    def layer() -> Layer:
        weights = rng.uniform(-1, 1, size=(WIDTH, WIDTH)) / WIDTH
        bias_1, filters, bias_2 = rng.uniform(-1, 1, size=(3, length, WIDTH))
        return Layer(weights, bias_1, filters / length, bias_2)

    return Stack((length, WIDTH), tuple(layer() for _ in range(layers)))


def _check(statement: str, source: str, bound: str, cases: list[Case]) -> Check:
    first = cases[0][0]
    return Check(
        statement=statement,
        source=source,
        checked="the layers against the direct computation",
        sizes=f"N' = {first.shape[0]}, d' = {first.shape[1]}, runs: {len(cases)}",
        error=max(largest_difference(stack(u), expected) for stack, u, expected in cases),
        **counted(first),
        layer_bound=bound,
    )


def _one_hot() -> Check:
    largest = 40
    return Check(
        statement="Binary codes become one-hot rows, 0 a row of zeros",
        source="Based, F.12 (1-hot)",
        checked="every code of b bits against its one-hot row",
        sizes=f"N' = 1..{largest} positions",
        error=max(one_hot_error(count) for count in range(1, largest + 1)),
        layers=one_hot_layers(largest),
        layer_bound=f"1 + ceil(log2 {code_width(largest)}) = {one_hot_layers(largest)}",
    )


def one_hot_error(count: int) -> float:
    """Return the largest difference over all codes, those of no position included."""
    bits = code_width(count)
    numbers = np.arange(2**bits)
    rows = one_hot((len(numbers), bits * count), count)(binary(numbers, bits), (len(numbers), count))
    return largest_difference(rows, one_hot_rows(numbers, count))
