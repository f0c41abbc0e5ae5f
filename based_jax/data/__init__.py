"""Data: text corpora, tokenizers, packed token streams and batches for language-model training.

corpus = load_documents("stdlib")
train, held_out = split_documents(corpus.documents, max_bytes=1_000_000)
packed = PackedTokens.from_documents(train, load_tokenizer("byte"))
batches = train_iterator(packed, length=512, batch_size=8, seed=0)
"""

from based_jax.data.documents import Corpus, Document, Skipped
from based_jax.data.packed import PackedTokens
from based_jax.data.pipeline import Batch, TrainIterator, held_out_batches, train_iterator
from based_jax.data.sources import load_documents
from based_jax.data.splits import split_documents
from based_jax.data.tokenizers import (
    ByteTokenizer,
    FileTokenizer,
    NucleotideTokenizer,
    StreamDecoder,
    Tokenizer,
    find_vocab_size,
    load_tokenizer,
)

__all__ = [
    "Batch",
    "ByteTokenizer",
    "Corpus",
    "Document",
    "FileTokenizer",
    "NucleotideTokenizer",
    "PackedTokens",
    "Skipped",
    "StreamDecoder",
    "Tokenizer",
    "TrainIterator",
    "find_vocab_size",
    "held_out_batches",
    "load_documents",
    "load_tokenizer",
    "split_documents",
    "train_iterator",
]
