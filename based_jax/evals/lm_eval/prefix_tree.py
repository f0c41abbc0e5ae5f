"""Build a tree of shared prefixes, so that a model reads each of them once.

The questions of a task share a header of examples, the choices of a question share the question: the tree has
one node per shared run of tokens, at any depth.
"""

import dataclasses
from collections.abc import Sequence
from itertools import groupby, takewhile

from based_jax.generate.prompt import SMALLEST_BUCKET

SHORTEST = SMALLEST_BUCKET
"""Minimum tokens of a shared run with its own node: lengths are rounded up to this, so fewer save nothing."""


@dataclasses.dataclass
class Node:
    """Tokens `start` to `stop` (exclusive) of the sequences in `members`, which agree up to `stop`."""

    start: int
    stop: int
    members: list[int]
    """indices of the sequences; those that are in no child end here"""
    longest: int
    """number of tokens of the longest of them"""
    children: "list[Node]" = dataclasses.field(default_factory=list)


def prefix_tree(sequences: Sequence[Sequence[int]], *, share: bool = True) -> list[Node]:
    """Build the tree and return its roots; each sequence is the path from a root to the node where it ends.

    Args:
        sequences: nonempty sequences of tokens.
        share: False makes every distinct sequence a root.

    Examples:
        >>> long = tuple(range(20))
        >>> [root] = prefix_tree([(*long, 1), (*long, 2, 3)])
        >>> (root.start, root.stop), [(node.stop, node.members) for node in root.children]
        ((0, 20), [(22, [1]), (21, [0])])
    """
    ordered = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    roots: list[Node] = []
    pending = [(ordered, 0, roots)] if ordered else []
    while pending:
        members, start, siblings = pending.pop()
        # In a sorted list, the common prefix of the first and the last is that of all.
        first, last = sequences[members[0]], sequences[members[-1]]
        pairs = zip(first[start:], last[start:], strict=False)
        stop = start + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        alike = stop == len(last)
        made = alike or (share and stop - start >= SHORTEST)
        if made:
            node = Node(start, stop, members, max(len(sequences[index]) for index in members))
            siblings.append(node)
            start, siblings = stop, node.children
        if not alike:
            # Sequences that end here are sorted first: their group has no next token.
            parts = [
                list(part) for _, part in groupby(members, lambda i, stop=stop: sequences[i][stop : stop + 1])
            ]
            if made and len(first) == stop:
                parts = parts[1:]
            pending += [(part, start, siblings) for part in parts]
    return roots
