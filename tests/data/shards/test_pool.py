"""Blocks that threads encode keep their order, and an error of one ends the run."""

import numpy as np
import pytest
import tokenizers

from based_jax.data.documents import Document
from based_jax.data.shards.blocks import Block, Position
from based_jax.data.shards.encoder import BlockEncoder, encode_blocks
from based_jax.data.tokenizers import FileTokenizer


def test_concurrent_blocks_keep_their_order(monkeypatch):
    vocabulary = {"<|endoftext|>": 0} | {f"word{i}": i + 1 for i in range(7)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = FileTokenizer(words.to_str())
    texts = [f"word{i % 7} " * (5_000 if i % 2 else 1 + i) for i in range(20)]
    blocks = []
    for i, text in enumerate(texts):
        blocks.append(Block(Position(i, 0, 0), i))
        blocks[-1].add(0, Document(f"{i}", text))
    results = list(encode_blocks(blocks, BlockEncoder(tokenizer), 3))
    assert [block.end.file for block, _ in results] == list(range(20))
    for (_, encoded), text in zip(results, texts, strict=True):
        np.testing.assert_array_equal(encoded.tokens[1:], tokenizer.encode(text))
    broken = BlockEncoder(tokenizer)
    monkeypatch.setattr(tokenizer, "encode_batch", lambda texts: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        list(encode_blocks(blocks, broken, 3))
