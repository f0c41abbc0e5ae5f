"""split_documents: nothing held out is ever trained on, and the side of a text is its own affair."""

import logging
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import Document, split_documents

FRACTIONS = st.floats(0.01, 0.99)
TEXTS = st.lists(st.text("ab€\n", max_size=6), min_size=1, max_size=12)


def _documents(texts) -> list[Document]:
    return [Document(f"{number:04d}", text) for number, text in enumerate(texts)]


def _split(texts, **options) -> tuple[list[str], list[str]]:
    train, held_out = split_documents(_documents(texts), **options)
    return [document.text for document in train], [document.text for document in held_out]


def _cut(text: str, fraction: float) -> tuple[str, str]:
    tail = max(1, round(len(text) * fraction))
    return (text[:-tail], text[-tail:]) if tail < len(text) else (text[:1], text[1:])


def _parts(text: str, max_bytes: int | None) -> set[str]:
    """What may be held out of a text: all of it where that fits, else its beginnings."""
    fits = {text[:end] for end in range(1, len(text) + 1) if len(text[:end].encode()) <= (max_bytes or 10**9)}
    return {text} if text in fits else fits


MANY = [f"document number {number}, {'x' * (number % 50)}" for number in range(1000)]


@given(texts=TEXTS, fraction=FRACTIONS, max_bytes=st.none() | st.integers(4, 20))
def test_no_held_out_text_is_a_training_text(texts, fraction, max_bytes):
    """Short texts over four characters: copies, and parts that equal other documents, are common."""
    try:
        train, held_out = _split(texts, fraction=fraction, max_bytes=max_bytes)
    except ValueError:
        # Only when every tail is a training text too, or every beginning of a text that had to be cut.
        halves = [_cut(text, fraction) for text in texts if text]
        heads = {head for head, _ in halves}
        assert all(_parts(tail, max_bytes) <= heads for _, tail in halves if tail) or any(
            _parts(text, max_bytes) <= set(texts) - {text} for text in texts if text
        )
        return
    assert train
    assert held_out
    assert all(train)
    assert all(held_out)
    assert not set(train) & set(held_out)
    assert len(held_out) == len(set(held_out))
    assert max_bytes is None or sum(len(text.encode()) for text in held_out) <= max_bytes
    # Nothing is invented: every part is a document, its beginning or its end.
    assert all(any(text.startswith(part) for text in texts) for part in train)
    assert all(any(part in text for text in texts) for part in held_out)


@given(seed=st.integers(0, 2**32), size=st.integers(500, 1000))
def test_the_side_depends_on_the_text_alone(seed, size):
    train, held_out = map(set, _split(MANY, fraction=0.2))
    some = random.Random(seed).sample(MANY, size)  # another order, other neighbours
    other_train, other_held_out = map(set, _split(some, fraction=0.2))
    assert other_train == train & set(some)
    assert other_held_out == held_out & set(some)


def test_every_text_is_on_one_side_and_the_fraction_is_met():
    train, held_out = _split(MANY, fraction=0.2)
    assert sorted(train + held_out) == sorted(MANY)
    assert 150 < len(held_out) < 250
    assert train == [text for text in MANY if text in set(train)], "the training side keeps its order"
    assert held_out != sorted(held_out)
    assert _split(MANY[::-1], fraction=0.2)[1] == held_out, "the held-out side has an order of its own"
    wider = _split(MANY, fraction=0.3)[1]
    assert set(held_out) < set(wider)


def test_copies_stay_in_training_and_are_held_out_once():
    train, held_out = _split(MANY + MANY[::-1], fraction=0.2)
    once = _split(MANY, fraction=0.2)
    assert once == _split(MANY, fraction=np.float64(0.2))
    assert sorted(train) == sorted(once[0] * 2)
    assert held_out == once[1]


def test_max_bytes_takes_whole_documents_in_order_while_they_fit():
    everything = _split(MANY, fraction=0.2)
    train, held_out = _split(MANY, fraction=0.2, max_bytes=1000)
    assert train == everything[0], "what is left over is unused, not trained on"
    size = sum(len(text) for text in held_out)
    assert size <= 1000
    assert held_out == [text for text in everything[1] if text in set(held_out)]
    smallest_left_over = min(len(text) for text in everything[1] if text not in set(held_out))
    assert size + smallest_left_over > 1000


def test_a_document_is_cut_only_when_none_fits():
    documents = _documents([text + "€" * 30 for text in MANY])
    _, everything = split_documents(documents)
    _, held_out = split_documents(documents, max_bytes=len(everything[0].text.encode()) - 1)
    assert "(cut)" not in " ".join(document.name for document in held_out)
    _, (cut,) = split_documents(documents, max_bytes=25)
    assert cut.name == f"{everything[0].name} (cut)"
    assert everything[0].text.startswith(cut.text)
    assert 22 < len(cut.text.encode()) <= 25, "at most a part of one character is lost"


def test_few_documents_lose_their_tails(caplog):
    texts = ["0123456789" * 10, "abcdefghij" * 4, "z"]
    with caplog.at_level(logging.INFO, logger="based_jax"):
        train, held_out = split_documents(_documents(texts), fraction=0.1)
    assert [(document.name, document.text) for document in train] == [
        ("0000 (head)", texts[0][:90]),
        ("0001 (head)", texts[1][:36]),
        ("0002 (head)", "z"),
    ]
    assert {(document.name, document.text) for document in held_out} == {
        ("0000 (tail)", texts[0][90:]),
        ("0001 (tail)", texts[1][36:]),
    }
    assert "tails" in caplog.text


@pytest.mark.parametrize("texts", [[], [""], ["a"], ["a", "b"], ["aa"], ["", "a", ""]])
def test_too_little_text_is_an_error(texts):
    with pytest.raises(ValueError, match=r"documents = .*expected enough text"):
        _split(texts, fraction=0.01)


@pytest.mark.parametrize(
    "options", [{"fraction": 0.0}, {"fraction": 1.0}, {"fraction": -1}, {"max_bytes": 0}, {"max_bytes": -5}]
)
def test_bad_arguments_are_errors(options):
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name} = {value}: expected"):
        _split(MANY, **options)
