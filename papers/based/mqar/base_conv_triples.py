"""The solvers' input from rows k_0, v_0, q_0, k_1, ...: two layers before any of them.

MQAR's lower bounds are for the sequence of triples, (3 N, d) (Based, F.4), and the solvers take [Q | K |
V]. The first layer copies all rows into three blocks of columns, the second shifts the block of keys down
by 2 and the block of values by 1 and keeps every third row. So a triple stands in the row of its query,
where the answer appears. The solver after it is one for 3 N rows; those without a triple are 0.
"""

import numpy as np

from based_jax.validate import expect
from papers.zoology.base_conv import Stack
from papers.zoology.basic_layers import delta
from papers.zoology.primitives.column_blocks import Part, block, convolved, rewrite

FRONT_LAYERS = 2
"""The layers that `on_triples` adds."""


def on_triples(solver: Stack, width: int) -> Stack:
    """Return the stack that maps triples, (3 N, d), to the answers, in rows 2, 5, ... of the first d columns.

    The solver is of [Q | K | V] with 3 N rows, and d = `width`.
    """
    rows = solver.shape[0]
    expect(rows % 3 == 0, "rows of solver", rows, "a multiple of 3")
    expect(width > 0, "width", width, "at least 1")
    blocks = [block(i * width, width) for i in range(3)]
    query_rows = (np.arange(rows)[:, None] % 3 == 2).astype(np.float64)
    copy = [Part(columns, blocks[0], np.eye(width)) for columns in blocks[1:]]
    shift = [
        convolved(columns, delta(rows, lag), query_rows)
        for columns, lag in zip(blocks, (0, 2, 1), strict=True)
    ]
    return rewrite(solver.shape, *copy).then(rewrite(solver.shape, *shift), solver)
