"""PackedTokens: the stream, and windows that tile it, against a loop over tokens."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data import ByteTokenizer, Document, PackedTokens

EOT = 256
TEXTS = st.lists(st.text(max_size=12), min_size=1, max_size=8)


def _pack(texts: list[str], tokenizer=None) -> PackedTokens:
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    return PackedTokens.from_documents(documents, tokenizer or ByteTokenizer())


class _WideTokenizer(ByteTokenizer):
    """Bytes under another vocabulary size, each id shifted by `shift`."""

    def __init__(self, vocab_size: int, shift: int) -> None:
        self.vocab_size = vocab_size
        self.eot = shift + 256
        self._shift = shift

    def encode(self, text: str) -> np.ndarray:
        return super().encode(text) + np.int32(self._shift)


def _expected_stream(texts: list[str]) -> tuple[list[int], list[int]]:
    """Tokens, and the number of the document that each belongs to, one by one."""
    tokens, owners = [], []
    for number, text in enumerate(texts):
        for token in (EOT, *text.encode()):
            tokens.append(token)
            owners.append(number)
    return [*tokens, EOT], owners


@given(texts=TEXTS)
def test_the_stream_is_documents_between_separators(texts):
    packed = _pack(texts)
    tokens, owners = _expected_stream(texts)
    np.testing.assert_array_equal(packed.tokens, tokens)
    assert packed.tokens.dtype == np.uint16
    assert packed.starts.tolist() == [owners.index(number) for number in range(len(texts))]
    assert packed.num_bytes == sum(len(text.encode()) for text in texts)
    assert len(packed) == packed.num_bytes + len(texts) + 1


@given(texts=TEXTS, length=st.integers(1, 20))
def test_windows_tile_the_stream_exactly(texts, length):
    packed = _pack(texts)
    tokens, owners = _expected_stream(texts)
    count = packed.num_windows(length, drop_last=False)
    windows = [packed.window(i, length) for i in range(count)]
    for key in ("inputs", "targets", "segment_ids"):
        assert all(window[key].dtype == np.int32 and window[key].shape == (length,) for window in windows)
    assert all(window["mask"].dtype == bool and window["mask"].shape == (length,) for window in windows)

    masks = np.concatenate([window["mask"] for window in windows])
    assert masks.sum() == len(tokens) - 1
    assert np.all(masks[: len(tokens) - 1]), "padding is only at the very end"
    for key, expected in (("inputs", tokens[:-1]), ("targets", tokens[1:])):
        joined = np.concatenate([window[key] for window in windows])
        np.testing.assert_array_equal(joined[masks], expected)
        assert np.all(joined[~masks] == EOT)

    for i, window in enumerate(windows):
        here = owners[i * length : (i + 1) * length]
        expected = [1 + owner - here[0] for owner in here]
        expected += [expected[-1]] * (length - len(here))
        np.testing.assert_array_equal(window["segment_ids"], expected)


def test_models_read_what_the_tokenizers_file_puts_before_a_text():
    tokenizer: Any = ByteTokenizer()
    tokenizer.start = 1
    window = _pack(["ab", "c"], tokenizer).window(0, 6)
    assert window["inputs"][:5].tolist() == [1, 97, 98, 1, 99]
    assert window["targets"].tolist() == [97, 98, EOT, 99, EOT, EOT]
    assert window["inputs"].dtype == np.int32


@given(texts=TEXTS, length=st.integers(1, 20))
def test_dropping_the_last_keeps_only_full_windows(texts, length):
    packed = _pack(texts)
    full = packed.num_windows(length, drop_last=True)
    all_windows = packed.num_windows(length, drop_last=False)
    masks = [packed.window(i, length)["mask"].all() for i in range(all_windows)]
    assert masks == [True] * full + [False] * (all_windows - full)
    assert all_windows - full == ((len(packed) - 1) % length != 0)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_the_smallest_dtype_that_holds_the_vocabulary(vocab_size, dtype):
    packed = _pack(["~"], _WideTokenizer(vocab_size, vocab_size - 257))
    assert packed.tokens.dtype == dtype
    assert packed.tokens.tolist() == [vocab_size - 1, vocab_size - 257 + 126, vocab_size - 1]


@pytest.mark.parametrize("shift", [-127, 200])
def test_ids_outside_the_vocabulary_are_an_error(shift):
    with pytest.raises(ValueError, match=r"token ids = .*expected from 0 to 299"):
        _pack(["fine", "~"], _WideTokenizer(300, shift))


def test_bad_arguments_are_errors():
    with pytest.raises(ValueError, match=r"documents = .*expected at least one"):
        _pack([])
    with pytest.raises(ValueError, match="length = 0: expected at least 1"):
        _pack(["abc"]).num_windows(0, drop_last=True)
