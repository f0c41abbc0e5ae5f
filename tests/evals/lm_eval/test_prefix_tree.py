"""The tree of shared beginnings."""

from collections import defaultdict
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from based_jax.evals.lm_eval.prefix_tree import SHORTEST, prefix_tree

HEADER = tuple(range(SHORTEST))


def walk(nodes):
    for node in nodes:
        yield node
        yield from walk(node.children)


# Runs of one token: such sequences share beginnings of any length.
runs = st.lists(st.tuples(st.integers(0, 1), st.integers(1, SHORTEST + 2)), min_size=1, max_size=3)
sequences = st.lists(runs.map(lambda parts: tuple(t for token, n in parts for t in [token] * n)), max_size=12)


@given(sequences, st.booleans())
def test_paths_are_the_sequences(texts, share):
    covered = defaultdict(list)
    for node in walk(prefix_tree(texts, share=share)):
        first = texts[node.members[0]]
        assert node.longest == max(len(texts[member]) for member in node.members)
        for member in node.members:
            covered[member].append((node.start, node.stop))
            assert texts[member][: node.stop] == first[: node.stop]
        assert not node.children or (share and node.stop - node.start >= SHORTEST)
    for member, text in enumerate(texts):  # each token is in one node, parents first
        stops = [0, *(stop for _, stop in covered[member])]
        assert covered[member] == list(pairwise(stops))
        assert stops[-1] == len(text)


@given(sequences)
def test_siblings_share_less_than_a_node(texts):
    def check(siblings):
        heads = [texts[node.members[0]][node.start : node.stop] for node in siblings]
        for index, head in enumerate(heads):
            for other in heads[index + 1 :]:
                assert head[:SHORTEST] != other[:SHORTEST] or len(head) < SHORTEST
        for node in siblings:
            check(node.children)

    check(prefix_tree(texts))


def test_header_question_choices():
    texts = [(*HEADER, question, *HEADER, choice) for question in (20, 30) for choice in (1, 2)]
    [header] = prefix_tree([*texts, texts[0]])
    assert (header.start, header.stop) == (0, 16)
    assert sorted((node.start, node.stop) for node in header.children) == [(16, 33)] * 2
    assert sorted(node.members for node in walk(header.children) if not node.children) == [
        [0, 4],
        [1],
        [2],
        [3],
    ]
    assert len(prefix_tree(texts, share=False)) == 4


def test_short_and_absent_sharing():
    assert [node.children for node in prefix_tree([(1, 2, 3), (1, 2, 4), (1, 2)])] == [[], [], []]
    assert prefix_tree([]) == []


def test_a_long_chain_of_beginnings():
    """Deeper than Python's stack."""
    texts = [(0,) * length for length in range(1, 1500)]
    assert max(node.stop for node in walk(prefix_tree(texts, share=False))) == 1499
