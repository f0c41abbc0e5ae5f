"""The texts and models of the benchmark of recall in long texts."""

import re

import jax
import numpy as np
import pytest

from based_jax.data.tokenizers import load_tokenizer
from benchmarks.models import long_recall


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("long_recall") / "tokenizer.json"
    long_recall.make_tokenizer(path)
    return load_tokenizer(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("slot", long_recall.SLOTS)
def test_only_answers_are_trained_on(tokenizer, slot):
    tokens, is_answer = long_recall.make_text(slot, "0", tokenizer)
    assert tokens.shape == is_answer.shape == (slot,)
    assert tokens[0] == tokenizer.eot
    whole = tokenizer.decode(tokens[tokens != tokenizer.eot])
    told = dict(re.findall(r"The code of (\S+) is (\d+)\.", whole))
    asked = re.findall(r"The code of (\S+) is (\d+)\n", whole)
    assert asked
    assert all(told[key] == value for key, value in asked)
    trained = tokenizer.decode(tokens[is_answer]).split()
    assert trained[: len(asked)] == [value for _, value in asked]


def test_the_window_has_the_bytes_of_baseds_state():
    def state_bytes(name):
        model = long_recall.make_model(name, 100)
        leaves = jax.tree.leaves(jax.eval_shape(lambda: model.init_state(1)))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    assert 1 <= state_bytes("window") / state_bytes("based") < 1.01


def test_texts_differ_by_their_seeds(tokenizer):
    one, again, other = (long_recall.make_text(256, seed, tokenizer)[0] for seed in "001")
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    texts = long_recall.texts_in(np.concatenate([one, other]), tokenizer)
    for text, tokens in zip(texts, (one, other), strict=True):
        assert np.array_equal(tokenizer.encode(text), tokens[tokens != tokenizer.eot])


def test_answers_are_found_among_the_targets():
    is_answer = np.zeros((2, 5), bool)
    is_answer[0, 0] = is_answer[0, 2] = is_answer[1, 1] = True  # the first token of a row is no target
    found = long_recall.answers_in(is_answer)
    assert found.shape == (1, 1024)
    assert found[found >= 0].tolist() == [1, 4]
