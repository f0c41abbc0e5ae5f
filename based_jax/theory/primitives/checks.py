"""The rows of the table for the primitives: what one to three layers do."""

from collections.abc import Sequence

import numpy as np

from based_jax.theory.base_conv import Layer, Matrix, Stack, convolve
from based_jax.theory.basic_layers import convolution, gate, linear
from based_jax.theory.check import Check, counted
from based_jax.theory.primitives.add import add, added
from based_jax.theory.primitives.columns import column_blocks_summed, sum_all_columns, sum_column_blocks
from based_jax.theory.primitives.cumulative import cumulative_sum, summed_so_far
from based_jax.theory.primitives.remember import applied, remember, remember_window, rows_needed
from based_jax.theory.primitives.repeat import (
    columns_repeated,
    matrix_repeated,
    repeat_columns,
    repeat_matrix,
)
from based_jax.theory.primitives.shift import shift_down, shift_up, shifted_down, shifted_up

LENGTH, WIDTH = 12, 6
"""N and d of the instances."""

Case = tuple[Stack, Matrix, Matrix]
"""A stack, its input and the output expected."""


def checks(seed: int = 0) -> list[Check]:
    """Zoology, H.7 to H.11; Based, F.7 to F.11, F.13 and corollary F.3."""
    rng = np.random.default_rng(seed)
    return [_basic(rng), *_shifts(rng), _add(rng), _window(rng), _stacking(rng), *_columns(rng), *_kept(rng)]


def _basic(rng: np.random.Generator) -> Check:
    u, filters, factors = rng.normal(size=(3, LENGTH, WIDTH))
    weights = rng.normal(size=(WIDTH, WIDTH))
    return _check(
        "A projection, a convolution and a fixed gate are a layer each",
        "Zoology, lemma H.7",
        [
            (linear(u.shape, weights), u, u @ weights),
            (convolution(u.shape, filters), u, convolve(filters, u)),
            (gate(u.shape, factors), u, factors * u),
        ],
        "1",
    )


def _shifts(rng: np.random.Generator) -> list[Check]:
    u = rng.normal(size=(LENGTH, WIDTH))
    every = range(LENGTH + 1)
    down = [(shift_down(u.shape, by), u, shifted_down(u, by)) for by in every]
    up = [(shift_up(u.shape, by), u, shifted_up(u, by)) for by in every]
    return [
        _check("A causal layer shifts rows down", "Zoology, H.8 (shift down)", down, "1"),
        _check("A circular layer shifts rows up", "Zoology, H.8 (shift up)", up, "3"),
    ]


def _add(rng: np.random.Generator) -> Check:
    u = rng.normal(size=(2 * LENGTH, WIDTH))
    case = (add((3 * LENGTH, WIDTH), LENGTH), u, added(u, LENGTH))
    return _check("A window is added to a running sum", "Zoology, H.9 (running sum)", [case], "2")


def _window(rng: np.random.Generator) -> Check:
    filters, factors, x = rng.normal(size=(3, LENGTH, WIDTH))
    v = rng.normal(size=(5, WIDTH))
    u = np.concatenate([x, v])
    stack = remember_window((2 * len(u), WIDTH), filters, factors, len(u))
    expected = np.concatenate([factors * convolve(filters, x), v])
    return _check(
        "A window is convolved and gated, the rows below are kept",
        "Zoology, H.10 (remember)",
        [(stack, u, expected)],
        "5",
    )


def _stacking(rng: np.random.Generator) -> Check:
    u = rng.uniform(-1, 1, size=(LENGTH, WIDTH))
    f, g = _random_stack(rng, LENGTH, 2), _random_stack(rng, LENGTH, 3)
    case = (f.then(g), u, g(f(u)))
    return _check("Layers of stacks add up as functions compose", "Zoology, lemma H.11", [case], "2 + 3 = 5")


def _columns(rng: np.random.Generator) -> list[Check]:
    u = rng.normal(size=(LENGTH, WIDTH))
    shape, wide, long = u.shape, (LENGTH, 3 * WIDTH), (3 * LENGTH, WIDTH)
    y = rng.normal(size=wide)
    rows = (
        ("Columns are repeated in place", "F.7 (repeat columns)",
         (repeat_columns(wide, 3), y, columns_repeated(y[:, :WIDTH], 3))),
        ("A matrix is repeated below itself", "F.8 (repeat matrix)",
         (repeat_matrix(long, 3), np.pad(u, ((0, 2 * LENGTH), (0, 0))), matrix_repeated(u, 3))),
        ("Rows are summed up to each row", "F.9 (cumulative sum)",
         (cumulative_sum(shape), u, summed_so_far(u))),
        ("All columns are summed", "F.10 (sum all columns)",
         (sum_all_columns(shape), u, column_blocks_summed(u, 1))),
        ("Blocks of columns are summed", "F.11 (sum blocks)",
         (sum_column_blocks(shape, 2), u, column_blocks_summed(u, 2))),
    )  # fmt: skip
    return [_check(statement, f"Based, {source}", [case], "1") for statement, source, case in rows]


def _kept(rng: np.random.Generator) -> list[Check]:
    u = rng.uniform(-1, 1, size=(LENGTH, WIDTH))
    start, size, layers = 3, 5, 4
    one, many = _random_stack(rng, size, 1), _random_stack(rng, size, layers)
    cases = [(remember((rows_needed(f, LENGTH), WIDTH), f, start, LENGTH), u, applied(u, f, start))
             for f in (one, many)]  # fmt: skip
    return [
        _check("A layer acts on some rows, those around are kept", "Based, F.13 (remember)", cases[:1], "8"),
        _check(
            f"{layers} layers act on some rows, those around are kept",
            "Based, corollary F.3",
            cases[1:],
            f"O(L); 8 L = {8 * layers}",
        ),
    ]


def _random_stack(rng: np.random.Generator, length: int, layers: int) -> Stack:
    """Layers that keep the order of magnitude."""

    def layer() -> Layer:
        weights = rng.uniform(-1, 1, size=(WIDTH, WIDTH)) / WIDTH
        bias_1, filters, bias_2 = rng.uniform(-1, 1, size=(3, length, WIDTH))
        return Layer(weights, bias_1, filters / length, bias_2)

    return Stack((length, WIDTH), tuple(layer() for _ in range(layers)))


def _check(statement: str, source: str, cases: Sequence[Case], bound: str) -> Check:
    """Stacks of one length and shape against what each has to compute."""
    account = cases[0][0].account
    return Check(
        statement=statement,
        source=source,
        checked="the layers against the direct computation",
        sizes=f"N' = {account.length}, d' = {account.width}, runs: {len(cases)}",
        error=max(float(np.abs(stack(u) - expected).max()) for stack, u, expected in cases),
        **counted(account),
        layer_bound=bound,
    )
