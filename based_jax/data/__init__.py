"""Load text corpora, tokenizers, packed token streams and batches for language-model training.

corpus = load_documents("stdlib")
train, held_out = split_documents(corpus.documents, max_bytes=1_000_000)
packed = PackedTokens.from_documents(train, load_tokenizer("byte"))
batches = train_iterator(packed, length=512, batch_size=8, seed=0)
"""

from typing import TYPE_CHECKING

from based_jax.data.documents import Document as Document
from based_jax.data.documents import Skipped as Skipped
from based_jax.data.packed import PackedTokens as PackedTokens
from based_jax.data.readers import ReadOptions as ReadOptions
from based_jax.data.reading import Corpus as Corpus
from based_jax.data.reading import load_documents as load_documents
from based_jax.data.splits import split_documents as split_documents
from based_jax.data.tokenizers import ByteTokenizer as ByteTokenizer
from based_jax.data.tokenizers import FileTokenizer as FileTokenizer
from based_jax.data.tokenizers import NucleotideTokenizer as NucleotideTokenizer
from based_jax.data.tokenizers import StreamDecoder as StreamDecoder
from based_jax.data.tokenizers import Tokenizer as Tokenizer
from based_jax.data.tokenizers import find_vocab_size as find_vocab_size
from based_jax.data.tokenizers import load_tokenizer as load_tokenizer
from based_jax.imports import on_first_use

if TYPE_CHECKING:
    from based_jax.data.pipeline import Batch as Batch
    from based_jax.data.pipeline import TrainIterator as TrainIterator
    from based_jax.data.pipeline import held_out_batches as held_out_batches
    from based_jax.data.pipeline import train_iterator as train_iterator

__getattr__, __dir__ = on_first_use(  # Grain takes a second and 200 MB
    __name__, {"pipeline": ("Batch", "TrainIterator", "held_out_batches", "train_iterator")}
)
