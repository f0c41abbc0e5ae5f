"""Compile circuits to BaseConv layers on a column: the theorem with its own shapes (Zoology, theorem H.21).

The values of a circuit are in the rows, where the projection W cannot move a value to another row. Shifts
can: a move (`routing`) is a layer of three masked shifts, by 0, k and -k (around the end), each in its own
column, and a layer that adds the three columns. Three blocks of three columns move to the row of each
value of the next level

    left        its first operand, or the value itself where it is there already
    right       its second summand, or 0
    factor      its second factor, or 0

Then all columns are left + right + constant, but for the last one, which is the factor, and one more layer
multiplies. For r = ceil(log2 w), a level takes at most 10 r - 3 layers, and the whole stack

    1 + Delta (10 r - 3) layers,   2^r < 2 w rows,   9 columns:   O(Delta log w) layers of O(w) parameters

with all zeros counted (r is at least 1; the theorem has d columns). `compile` needs fewer layers, of O(w^2)
parameters.
"""

from itertools import pairwise

import numpy as np

from papers.zoology.base_conv import Stack
from papers.zoology.basic_layers import delta, linear, masked_convolution, one_layer
from papers.zoology.circuits.circuit import Circuit
from papers.zoology.circuits.routing import Move, route
from papers.zoology.circuits.stages import held

LEFT, RIGHT, FACTOR = range(3)
WIDTH = 9
"""Columns: each of the three operands with three shifts."""


def compile_columns(circuit: Circuit) -> Stack:
    """Return the stack from variables, (n, 1), to outputs: ``stack(u, (len(circuit.outputs), 1))``."""
    values = held(circuit, circuit.levels)
    rows = 2 ** max(1, (max(map(len, values)) - 1).bit_length())
    stack = linear((rows, WIDTH), np.outer(np.eye(WIDTH)[0], np.ones(WIDTH)))
    for number, (before, after) in enumerate(pairwise(values), 1):
        stack = stack.then(*_layers(*_level(circuit, number, before, after, rows)))
    return stack


def _level(
    circuit: Circuit, number: int, before: list[int], after: list[int], rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the content of each row after a level: scale * left + right + constant, times factor if any.

    Returns the sources, of each operand and row the row before the level, or -1, scales and constants.
    """
    row_of = {node: row for row, node in enumerate(before)}
    sources, scales, constants = np.full((3, rows), -1), np.ones(rows), np.zeros(rows)
    for row, node in enumerate(after):
        kind = circuit.nodes[node].kind
        # A value of an earlier level is the sum of itself and nothing.
        operands = circuit.nodes[node].operands if circuit.levels[node] == number else (node,)
        taken = [row_of[operand] for operand in operands if operand in row_of]
        fixed = [circuit.nodes[operand].value for operand in operands if operand not in row_of]
        if len(operands) == 1 or kind == "+":
            sources[: len(taken), row] = taken
            constants[row] = sum(fixed)
        elif len(taken) == 2:
            sources[[LEFT, FACTOR], row] = taken
        elif len(taken) == 1:
            sources[LEFT, row], scales[row] = taken[0], fixed[0]
        else:
            constants[row] = fixed[0] * fixed[1]
    return sources, scales, constants


def _layers(sources: np.ndarray, scales: np.ndarray, constants: np.ndarray) -> list[Stack]:
    """Two for each move, and one more if there are factors."""
    rows = len(scales)
    routes = [route(operand) for operand in sources]
    longest = max(map(len, routes))
    padded = [[np.arange(rows)] * (longest - len(moves)) + moves for moves in routes]
    *steps, last = zip(*padded, strict=True)
    blocks = linear((rows, WIDTH), np.kron(np.eye(3), np.ones((3, 3))))
    layers = [layer for moves in steps for layer in (_shift(moves, np.ones(rows)), blocks)]
    factors = sources[FACTOR] >= 0
    layers += [_shift(last, scales), _sum(constants, factors.any())]
    return [*layers, _multiply(factors)] if factors.any() else layers


def _shift(moves: tuple[Move, ...], scales: np.ndarray) -> Stack:
    """Move: each block's first column holds values that stay, the others those from rows above and below."""
    rows = len(scales)
    masks, filters = np.zeros((2, rows, WIDTH))
    for block, move in enumerate(moves):
        lags = np.where(move >= 0, np.arange(rows) - move, 0)
        distance = np.abs(lags).max()
        for column, lag in enumerate((0, distance, -distance) if distance else (0,), 3 * block):
            masks[:, column] = (move >= 0) & (lags == lag)
            filters[lag % rows, column] = 1
    masks[:, :3] *= scales[:, None]
    return masked_convolution((rows, WIDTH), filters, masks, circular=True)


def _sum(constants: np.ndarray, factors: np.bool_) -> Stack:
    """left + right + constant in all columns, or in all but the last one, which is the factor."""
    weights, bias = np.zeros((WIDTH, WIDTH)), np.repeat(constants[:, None], WIDTH, axis=1)
    weights[: 3 * FACTOR] = 1
    if factors:
        weights[:, -1] = np.arange(WIDTH) >= 3 * FACTOR
        bias[:, -1] = 0
    return one_layer(bias.shape, weights, bias, bias_2=1.0)


def _multiply(factors: np.ndarray) -> Stack:
    """sum * factor in all columns; in rows without a factor, which is 0 there, sum * 1."""
    weights, last = np.zeros((WIDTH, WIDTH)), np.arange(WIDTH) == WIDTH - 1
    weights[-1, :-1], weights[0, -1] = 1, 1
    alone = ~factors[:, None]
    return one_layer((len(factors), WIDTH), weights, alone * ~last, delta(len(factors)), alone * last)
