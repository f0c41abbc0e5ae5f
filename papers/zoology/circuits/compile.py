"""Compile arithmetic circuits to BaseConv layers (Zoology, theorem 4.2 = H.21; Based, theorem F.1).

The values of a circuit are in one row, in a column each: the inner matrix is 1 x D~. A stage is

    route      W moves the values that are needed to their columns, adding and scaling them on the way, with
               constants in b1; the other half is 1
    multiply   a * b in the column of b: W reads a, and the filter delta_0 keeps b

and a stage without products of two values needs no second layer. Both factors of a product are data, so
one comes from the projection and one from the convolution: b1, where the proof has the first factors, is the
same for every input. A level of products takes two layers if factors are sums: (x0 + x1) * (x2 + x3) is
not one layer, since the filter's result in a column has only one variable.

    merge=False    a stage is a level: at most 2 Delta layers of at most 2 w columns, and W has at most two
                   entries a column: the theorem without its log w.
    merge=True     a stage is a level of products, and all sums between two such levels are one matrix: 2 M
                   layers, or 2 M + 1 where outputs are sums of the last products, for M products on the
                   longest path. The columns are those of another cut than w's, and W fills up.

On one row a projection moves and adds everything at once, for D~^2 parameters of which O(D~) are not 0. The
theorem's inner matrix is O(w) x d, where the projection cannot bring a value to another row: `columnar`.
"""

import numpy as np

from papers.zoology.base_conv import Matrix, Stack
from papers.zoology.basic_layers import one_layer
from papers.zoology.circuits.circuit import Circuit
from papers.zoology.circuits.stages import Stage, merged_levels, stages


def compile_circuit(circuit: Circuit, merge: bool = True) -> Stack:
    """Return the stack from variables, (1, n), to outputs: ``stack(u, (1, len(circuit.outputs)))``."""
    levels = merged_levels(circuit) if merge else circuit.levels
    steps = stages(circuit, levels)
    width = max(circuit.variables, *(len(stage.seats) for stage in steps))
    stack = Stack((1, width))
    for number, stage in enumerate(steps, 1):
        new = [index for index, level in enumerate(levels) if level == number and circuit.linear(index)]
        stack = stack.then(_route(circuit, stage, new, width))
        if stage.products:
            stack = stack.then(_multiply(stage, width))
    return stack


def run(stack: Stack, u: Matrix, outputs: int) -> Matrix:
    """Run a compiled circuit, on a row or a column, on a batch of inputs: (B, n) to (B, outputs)."""
    on_a_row = stack.shape[0] == 1
    inputs = u[:, None, :] if on_a_row else u[:, :, None]
    shape = (1, outputs) if on_a_row else (outputs, 1)
    return np.stack([stack(values, shape).ravel() for values in inputs])


def _route(circuit: Circuit, stage: Stage, new: list[int], width: int) -> Stack:
    """Compute every column as an affine form of the columns before, whose last entry is the constant.

    The stage computes the sums and products with constants in `new`, operands first.
    """
    basis = np.eye(width + 1)
    forms = {node: basis[column] for column, node in enumerate(stage.before)}
    constants = {index: node.value for index, node in enumerate(circuit.nodes) if node.kind == "constant"}
    forms |= {index: value * basis[width] for index, value in constants.items()}
    for index in new:
        left, right = circuit.nodes[index].operands
        if circuit.nodes[index].kind == "+":
            forms[index] = forms[left] + forms[right]
        elif right in constants:
            forms[index] = constants[right] * forms[left]
        else:
            forms[index] = constants[left] * forms[right]
    seats = np.zeros((width, width + 1))
    seats[: len(stage.seats)] = [forms[node] for node in stage.seats]
    return one_layer((1, width), seats[:, :width].T, seats[:, width], bias_2=1.0)


def _multiply(stage: Stage, width: int) -> Stack:
    """Compute products in their columns; keep values that are read later; set first factors' columns to 0."""
    weights, bias_1 = np.zeros((width, width)), np.where(np.arange(width) < stage.kept, 1.0, 0.0)
    for column, first in stage.products.items():
        weights[first, column], bias_1[column] = 1, 0
    return one_layer((1, width), weights, bias_1, filters=1.0)
