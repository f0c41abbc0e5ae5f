"""Worker processes that encode blocks: nothing of an answer is lost."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from based_jax.data.shards.blocks import Block, Part, Position
from based_jax.data.shards.pool import Workers
from based_jax.data.tokenizers import FileTokenizer


@pytest.mark.parametrize(("count", "threads"), [(1, [1]), (2, [2]), (4, [4]), (5, [3, 2]), (9, [3, 3, 3])])
def test_threads_of_the_library_share_few_processes(tmp_path, count, threads):
    pool = Workers(count, tmp_path, [], is_threaded=True)
    assert pool._threads_of == threads
    assert Workers(count, tmp_path, [])._threads_of == [1] * count


def test_concurrent_blocks_of_one_process_keep_their_order(tmp_path):
    """Two of the library's threads and three channels: long and short blocks alternate."""
    content = _words_tokenizer(tmp_path)
    texts = [f"word{i % 7} " * (5_000 if i % 2 else 1 + i) for i in range(20)]
    blocks = [
        Block([Part("texts", f"{i}", None, [len(text)], text.encode())], [], Position(i, 0, 0), i)
        for i, text in enumerate(texts)
    ]
    with Workers(2, tmp_path, [], is_threaded=True) as pool:
        assert len(pool.pids) == 1
        results = list(pool.encode(blocks))
    assert [block.end.unit for block, _ in results] == list(range(20))
    for (_, encoded), text in zip(results, texts, strict=True):
        np.testing.assert_array_equal(encoded.tokens[1:], content.encode(text))


def test_a_worker_that_is_killed_ends_the_run(tmp_path):
    """Also while other threads of it have requests."""
    _words_tokenizer(tmp_path)
    text = b"word1 " * 200_000
    blocks = [Block([Part("texts", "a", None, [len(text)], text)], [], Position(0, 0, 0), 0)] * 6
    with Workers(2, tmp_path, [], is_threaded=True) as pool:
        results = pool.encode(blocks)
        next(results)
        os.kill(pool.pids[0], signal.SIGKILL)
        with pytest.raises(OSError, match="status -9"):
            list(results)


def _words_tokenizer(directory: Path) -> FileTokenizer:
    """Write a tokenizer of eight words; return it."""
    vocabulary = {"<|endoftext|>": 0} | {f"word{i}": i + 1 for i in range(7)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = FileTokenizer(words.to_str())
    tokenizer.save(directory)
    return tokenizer
