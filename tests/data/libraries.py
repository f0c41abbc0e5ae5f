"""Tokenizers of the `tokenizers` library by kind, small enough to write down."""

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

SPECIAL = ("<unk>", "</s>")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789</>[]\u2581"


def byte_level(names=("<|endoftext|>",)) -> tokenizers.Tokenizer:
    """Bytes, in the manner of GPT-2, without merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(names))
    return made


def llama(decoder: str = "strip") -> tokenizers.Tokenizer:
    """Words, and bytes for what they lack; `decoder`: "strip" (Llama), "keep" (Gemma) or "metaspace"."""
    words = [
        *SPECIAL,
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *LETTERS,
        "\u2581hello",
        "\u2603",
        "\ufffd",
    ]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    spaces, fallback = decoders.Replace("\u2581", " "), decoders.ByteFallback()
    made.decoder = {
        "strip": decoders.Sequence([spaces, fallback, decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        "keep": decoders.Sequence([spaces, fallback, decoders.Fuse()]),
        "metaspace": decoders.Sequence([fallback, decoders.Metaspace()]),
    }[decoder]
    made.add_special_tokens(list(SPECIAL))
    return made


def unigram(*, byte_fallback: bool = False) -> tokenizers.Tokenizer:
    """Pieces with scores, in the manner of T5: those of special tokens are among them."""
    names = [*SPECIAL, "<extra>", *(f"<0x{byte:02X}>" for byte in range(256) if byte_fallback)]
    pieces = [*((name, 0.0) for name in names), *((letter, -4.0) for letter in LETTERS)]
    made = tokenizers.Tokenizer(models.Unigram(pieces, 0, byte_fallback))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    if byte_fallback:
        made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    made.add_special_tokens([*SPECIAL, "<extra>"])
    return made


def words() -> tokenizers.Tokenizer:
    """Whole words."""
    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[SEP]", "a", "b"])}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["[UNK]", "[SEP]"])
    return made


def word_pieces() -> tokenizers.Tokenizer:
    """Parts of words, in the manner of BERT, but split at spaces only."""
    pieces = ["[UNK]", "[SEP]", "a", "b", "[", "##S", "##E", "##P", "##]", "##b", "S"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.WhitespaceSplit(), decoders.WordPiece()
    made.add_special_tokens(["[UNK]", "[SEP]"])
    return made


def merges(*, ignore: bool = False, special: bool = True) -> tokenizers.Tokenizer:
    """Characters with merges up to the separator, or with whole pieces that need no merges."""
    pieces = ["</s>", "<unk>", *"ab</s> >", "</", "s>"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    pairs = [] if ignore else [("<", "/"), ("s", ">"), ("</", "s>")]
    made = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, unk_token="<unk>", ignore_merges=ignore))
    made.decoder = decoders.Fuse()
    made.add_tokens([tokenizers.AddedToken(name, special=special) for name in ("</s>", "<unk>")])
    return made


FORGERIES = {
    "unigram": (unigram(), "html </s> tag", True),
    "unigram, unknown": (unigram(), "a<unk>b<extra>", True),
    "unigram, made by normalization": (unigram(), "a \uff1c/s\uff1e b", False),
    "unigram, byte": (unigram(byte_fallback=True), "a <0x41> \u2603</s>", True),
    "words": (words(), "a [SEP] b", False),
    "word pieces": (word_pieces(), "a [SEP] [SEP]b", False),
    "merges": (merges(), "a</s>b</s>", True),
    "whole pieces": (merges(ignore=True), "</s>", True),
    "not marked special": (merges(special=False), "a</s>b", True),
    "bytes and words": (llama(), "a </s><0x41>", True),
    "byte level": (byte_level(), "a <|endoftext|>", True),
}
"""Name -> a tokenizer, a text with names of its special tokens, and whether decoding returns the text."""
