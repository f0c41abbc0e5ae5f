"""Files of the tokenizers library: text stays text, encodings are fixed, bytes are exact."""

import json
import random

import numpy as np
import pytest
import tokenizers
from tokenizers import models, processors

from based_jax.data import Document, FileTokenizer, PackedTokens, StreamDecoder, load_tokenizer
from based_jax.data.shards.blocks import BlockEncoder
from based_jax.data.tokenizers import complete_text, decode_after, save_chat_files, stop_tokens, text_start
from tests.data.libraries import FORGERIES, byte_level, llama, merges, unigram, words

MARKED = {"content": "<think>", "special": True}


@pytest.mark.parametrize("name", FORGERIES)
def test_the_name_of_a_special_token_is_text(name):
    library, text, exact = FORGERIES[name]
    tokenizer = FileTokenizer(library.to_str())
    ids = tokenizer.encode(text)
    unknown = {"<unk>", "[UNK]"} if not exact else set()
    special = {number for token, number in tokenizer.special_tokens.items() if token not in unknown}
    assert special.isdisjoint(ids.tolist())
    assert not exact or tokenizer.decode(ids) == text
    np.testing.assert_array_equal(tokenizer.encode_batch([text])[0], ids)
    packed = PackedTokens.from_documents([Document("one", text)], tokenizer)
    block = BlockEncoder(tokenizer).encode([(0, Document("one", text))])
    assert block.tokens.tolist() == packed.tokens[:-1].tolist() == [tokenizer.eot, *ids]


def test_other_texts_are_encoded_as_by_the_library():
    for library, text in ((unigram(), "html tag </ s>"), (merges(), "a< /s>b </"), (words(), "a b a")):
        assert FileTokenizer(library.to_str()).encode(text).tolist() == library.encode(text).ids


def test_an_unknown_character_is_no_separator():
    library = tokenizers.Tokenizer(models.BPE({"</s>": 0, "a": 1}, [], unk_token="</s>"))
    assert FileTokenizer(library.to_str()).encode("a\u2603a").tolist() == [1, 1]


def test_the_separator_is_a_special_token_if_one_is():
    """Gemma's vocabulary has HTML's </s> too."""
    made = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    made.add_special_tokens([tokenizers.AddedToken("<eos>", special=True)])
    made.add_tokens([tokenizers.AddedToken("</s>", special=False)])
    tokenizer = FileTokenizer(made.to_str())
    assert tokenizer.stop_tokens == (tokenizer.eot,) == (made.token_to_id("<eos>"),)


def test_a_text_that_the_model_has_no_tokens_for_is_left_out_by_name():
    library = tokenizers.Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = FileTokenizer(library.to_str())
    texts = [Document("one", "a b"), Document("two", "a zebra"), Document("three", "b")]
    with pytest.raises(ValueError, match=r"two: text: expected one that the tokenizer can encode \("):
        PackedTokens.from_documents(texts, tokenizer)
    block = BlockEncoder(tokenizer).encode(list(enumerate(texts)))
    assert block.tokens.tolist() == [0, 1, 2, 0, 2]


@pytest.mark.parametrize(("form", "start"), [(None, "</s>"), ("<s> $A", "<s>"), ("$A </s>", "</s>")])
def test_the_start_of_a_text_is_that_of_its_file(form, start):
    library = llama()
    library.add_special_tokens(["<s>", "</s>"])
    if form is not None:
        numbers = [(name, library.token_to_id(name)) for name in ("<s>", "</s>")]
        library.post_processor = processors.TemplateProcessing(single=form, special_tokens=numbers)
    assert text_start(FileTokenizer(library.to_str())) == library.token_to_id(start)


def test_dropout_does_not_apply(tmp_path):
    """It is for training a model on many encodings of a text; scores and shards need one."""
    vocabulary = {"</s>": 0, "a": 1, "b": 2, "ab": 3}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, [("a", "b")], dropout=0.5))
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert {tuple(ids.tolist()) for ids in tokenizer.encode_batch(["ab" * 8] * 20)} == {(3,) * 8}
    tokenizer.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["dropout"] is None


def test_special_tokens_and_ends_of_its_files(tmp_path):
    """A tokenizer's file need not mark them; what is saved remembers them."""
    library = byte_level()
    names = ("<|im_end|>", "<|eot|>", "<think>")
    library.add_tokens([tokenizers.AddedToken(name, special=False, normalized=False) for name in names])
    library.save(str(tmp_path / "tokenizer.json"))
    end, eot, think = map(library.token_to_id, names)
    text = "a<|im_end|><think>"
    assert stop_tokens(load_tokenizer(tmp_path)) == (256,)
    assert load_tokenizer(tmp_path).encode(text).tolist()[-2:] == [end, think]
    config = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "!", "bos_token": "<missing>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert stop_tokens(load_tokenizer(tmp_path)) == (256, end)
    text_config = {"eos_token_id": None, "text_config": {"eos_token_id": [eot]}}
    for entries in ({"eos_token_id": eot}, text_config):
        (tmp_path / "config.json").write_text(json.dumps(entries))  # there is no generation_config.json
        tokenizer = load_tokenizer(tmp_path)
        tokenizer.save(tmp_path / "saved")
        save_chat_files(tokenizer, tmp_path / "saved")
        assert stop_tokens(tokenizer) == stop_tokens(load_tokenizer(tmp_path / "saved")) == (256, end, eot)
    for value, expected in (
        ([eot, 10**6, True], (256, end, eot)),
        (eot, (256, end, eot)),
        (None, (256, end)),
    ):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        assert stop_tokens(load_tokenizer(tmp_path)) == expected
    tokenizer = load_tokenizer(tmp_path)
    tokenizer.save(tmp_path / "copy")
    for known in (tokenizer, load_tokenizer(tmp_path / "copy")):
        ids = known.encode(text)
        assert ids.tolist() == [*known.encode("a<|im_end|").tolist(), known.encode(">")[0], think]
        assert known.decode([*ids, end]) == text
        assert known.encode("!").size == 1
    load_tokenizer(tmp_path / "copy").save(tmp_path / "again")
    copies = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("copy", "again")]
    assert copies[0] == copies[1]
    for more in ({"additional_special_tokens": ["<think>"]}, {"added_tokens_decoder": {"3": MARKED}}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(more))
        assert load_tokenizer(tmp_path).encode("<think>").tolist() == [ord(byte) - 33 for byte in "<think>"]
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"generation_config.json = 'list': expected a JSON object"):
        load_tokenizer(tmp_path)


# --- byte fallback


@pytest.mark.parametrize("decoder", ["strip", "keep", "metaspace"])
def test_streams_of_byte_fallback(decoder):
    """Whatever a model samples: bytes that are no character, special tokens among them, any context."""
    tokenizer, draw = FileTokenizer(llama(decoder).to_str()), random.Random(0)
    spelled = [2 + byte for byte in b"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbd\xffa "]
    others = [0, 1, *range(258, tokenizer.vocab_size)]
    for _ in range(200):
        ids = [draw.choice(draw.choice([spelled, spelled, others])) for _ in range(draw.randrange(1, 50))]
        text, cut = tokenizer.decode(ids), draw.randrange(len(ids))
        stream = StreamDecoder(tokenizer)
        chunks = [stream.feed(token) for token in ids]
        assert "".join(chunks) + stream.flush() == text
        stream = StreamDecoder(tokenizer, ids[:cut])
        after = "".join(map(stream.feed, ids[cut:])) + stream.flush()
        assert after == decode_after(tokenizer, ids[:cut], ids[cut:])
        assert complete_text(tokenizer, ids[:cut]) + after == text


def test_one_wrong_byte_leaves_the_characters_around_it():
    """The library's decoder replaces all bytes of such a run."""
    tokenizer = FileTokenizer(llama().to_str())
    ids = [2 + byte for byte in "é☃".encode() + b"\xf0\x9f" + "€".encode()]
    assert tokenizer.decode(ids) == "é☃\ufffd\ufffd€"
    assert tokenizer.decode([*ids[:7], 1, *ids[7:]]) == "é☃\ufffd\ufffd€", "a special token has no text"
    stream = StreamDecoder(tokenizer)
    shown = [stream.feed(token) for token in ids]
    assert shown == ["", "é", "", "", "☃", "", "", "", "\ufffd", "\ufffd€"]


# --- the first word


@pytest.mark.parametrize(
    "library", [llama(), llama("metaspace"), words()], ids=["strip", "metaspace", "words"]
)
def test_the_first_word_after_a_context_keeps_its_space(library):
    tokenizer = FileTokenizer(library.to_str())
    word = library.token_to_id("\u2581hello") or 2
    text = tokenizer.decode([word])
    for context in ([word], [tokenizer.eot, word], [word, *[tokenizer.eot] * 20]):
        assert StreamDecoder(tokenizer, context).feed(word) == f" {text}"
        assert decode_after(tokenizer, context, np.array([word, word])) == f" {text} {text}"
    for context in ([], [tokenizer.eot]):
        assert StreamDecoder(tokenizer, context).feed(word) == text, "a document has none"


def test_a_context_that_ends_within_a_character():
    tokenizer = load_tokenizer("byte")
    for context, ids, shown in (
        (b"a\xe2\x82", b"\xacb", "€b"),
        (b"a\xe2\x82", b"b", "\ufffdb"),
        ("a\ufffd".encode(), "€".encode(), "€"),
        (b"", b"b", "b"),
    ):
        stream = StreamDecoder(tokenizer, [*context])
        assert "".join(map(stream.feed, ids)) + stream.flush() == shown
        assert decode_after(tokenizer, [*context], [*ids]) == shown
