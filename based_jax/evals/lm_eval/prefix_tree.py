"""Which tokens several sequences share, so that a model need read them once.

The questions of a task share a header of examples, the choices of a question share the question: a tree whose
nodes are runs of tokens has one node for each of them, at any depth.
"""

import dataclasses
import functools
from collections.abc import Sequence
from itertools import groupby

from based_jax.generate.prompt import SMALLEST_BUCKET

SHORTEST = SMALLEST_BUCKET
"""tokens of a shared run that gets a node: lengths are rounded up to this, so fewer would save nothing"""


@dataclasses.dataclass
class Node:
    """Tokens `start` to `stop` of the sequences in `members`, which are the same up to `stop`."""

    start: int
    stop: int
    members: list[int]
    """which sequences, by their index; those that are in no child end here"""
    longest: int
    """tokens of the longest of them"""
    children: "list[Node]" = dataclasses.field(default_factory=list)


def prefix_tree(sequences: Sequence[Sequence[int]], *, share: bool = True) -> list[Node]:
    """The roots of the tree: every path from a root gives a sequence, every sequence is the end of a path.

    Args:
        sequences: tokens; none is empty.
        share: False makes a root of every distinct sequence.

    Examples:
        >>> long = tuple(range(20))
        >>> [root] = prefix_tree([(*long, 1), (*long, 2, 3)])
        >>> (root.start, root.stop), [(node.stop, node.members) for node in root.children]
        ((0, 20), [(21, [0]), (22, [1])])
    """
    ordered = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    roots: list[Node] = []
    pending = [(ordered, 0, roots)] if ordered else []
    while pending:
        members, start, siblings = pending.pop()
        # In a sorted list the first and the last one share what all of them share.
        first, last = sequences[members[0]], sequences[members[-1]]
        stop = _common(first, last, start)
        alike = stop == len(last)
        made = alike or (share and stop - start >= SHORTEST)
        if made:
            node = Node(start, stop, members, max(len(sequences[index]) for index in members))
            siblings.append(node)
            start, siblings = stop, node.children
        if not alike:
            parts = [list(part) for _, part in groupby(members, functools.partial(_token, sequences, stop))]
            if made and len(first) == stop:  # some end here, in this node; sorted, they come first
                parts = parts[1:]
            pending += [(part, start, siblings) for part in parts]
    return roots


def _token(sequences: Sequence[Sequence[int]], place: int, index: int) -> int | None:
    """What a sequence has at a place; None after its end."""
    return sequences[index][place] if place < len(sequences[index]) else None


def _common(first: Sequence[int], last: Sequence[int], start: int) -> int:
    """Where two sequences that agree up to `start` first differ, or one of them ends."""
    end = min(len(first), len(last))
    return next((index for index in range(start, end) if first[index] != last[index]), end)
