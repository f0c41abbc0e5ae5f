"""Recall tasks: reading the published columns, prompts, answers and scores."""

import json

import numpy as np
import pytest

from based_jax.data.tokenizers import ByteTokenizer, FileTokenizer
from based_jax.evals.recall.protocol import TASKS, Example, contains, make_prompt, read_answer, read_examples
from tests.data.libraries import llama

BYTES = ByteTokenizer()
ROWS = [{"doc_id": "a", "text": "The year: 1999\nyear:", "key": "year", "value": "1999"}]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_rows_are_read_from_json_lines(tmp_path):
    rows = [ROWS[0], {**ROWS[0], "text": "\u2028Ort:", "key": "Ort", "value": "Köln"}]
    expected = [Example(0, "The year: 1999\nyear:", "year", "1999"), Example(1, "\u2028Ort:", "Ort", "Köln")]
    assert read_examples("swde", write(tmp_path / "rows.jsonl", rows)) == expected
    with pytest.raises(ValueError, match=r"rows.jsonl, row 1 = .*expected columns .*; no question here$"):
        read_examples("squad_completion", str(tmp_path / "rows.jsonl"))


def test_squads_key_is_its_question(tmp_path):
    row = {"text": "It is", "question": "What?", "value": "this"}
    found = read_examples("squad_completion", write(tmp_path / "rows.jsonl", [row]))
    assert found == [Example(0, "It is", "What?", "this")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a", "key": "b"}', "row 1 = .*: expected columns text, key, value; no value here"),
        ('{"text": "a", "key": "b", "value": 3}', r"rows.jsonl, row 1, value = 3: expected a text"),
        (r'{"text": "a\ud800", "key": "b", "value": "c"}', r"row 1, text = 'a\\ud800': expected a text"),
        ('{"text": "", "key": "b", "value": "c"}', "row 1 = '': expected a text that is not empty"),
        ("{", r"rows.jsonl, line 1: expected (a )?JSON"),
        ("[]", r"rows.jsonl, row 1 = .*expected a JSON object"),
        ("", r"data = .*: expected at least one row"),
    ],
)
def test_wrong_rows_are_named(tmp_path, content, message):
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_examples("swde", str(tmp_path / "rows.jsonl"))


def test_wrong_files_are_named():
    for task, data, message in [
        ("swde", "none.jsonl", "data = 'none.jsonl': expected a file"),
        ("swde", "rows.csv", "data = 'rows.csv': expected hub, hf:NAME or a .jsonl file"),
        ("other", "rows.jsonl", "task = 'other': expected one of 'swde', 'fda', 'squad_completion'"),
    ]:
        with pytest.raises((FileNotFoundError, ValueError), match=message):
            read_examples(task, data)


def test_the_hub_gives_the_validation_rows(monkeypatch):
    class Hub:
        @staticmethod
        def load_dataset(name, config, split, streaming):
            asked.append((name, split))
            if name == "none":
                raise RuntimeError("no such thing\nat all")
            return ROWS

    asked = []
    monkeypatch.setattr("based_jax.data.hub.import_optional", lambda *_: Hub)
    for task, (hub, _) in TASKS.items():
        if task != "squad_completion":
            assert read_examples(task, "hub")[0].value == "1999"
            assert asked[-1] == (hub, "validation")
    assert read_examples("swde", "hf:mine")[0].value == "1999"
    with pytest.raises(ValueError, match=r"data = 'hf:none:validation': .*; RuntimeError: no such thing$"):
        read_examples("swde", "hf:none")


def test_a_long_prompt_loses_its_beginning():
    prompt = make_prompt(Example(0, "0123456789", "k", "v"), BYTES, context=48 + 4)
    assert BYTES.decode(prompt.tokens) == "6789"
    assert (prompt.length, prompt.truncated) == (10, True)
    whole = make_prompt(Example(0, "0123", "k", "v"), BYTES, context=48 + 4)
    assert BYTES.decode(whole.tokens) == "0123"
    assert not whole.truncated
    with pytest.raises(ValueError, match="context = 48: expected more than the 48 tokens"):
        make_prompt(prompt.example, BYTES, context=48)


def test_an_answer_begins_after_its_prompt():
    tokenizer = FileTokenizer(llama().to_str())
    ids = tokenizer.encode("hello")
    assert read_answer(ids, tokenizer, ids) == " hello"
    assert read_answer(ids, tokenizer) == "hello"


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        *((b" one\ntwo", " one"), (b"\n", ""), (b"", ""), (b" one", " one"), (b" one\r more", " one\r more")),
        ([*b"one", 256, 256, *b"two\nthree", 256], "one<|endoftext|><|endoftext|>two"),
    ],
)
def test_answers_end_at_the_newline(tokens, text):
    padded = np.array([*tokens, -1, -1])
    assert read_answer(padded, BYTES) == text


@pytest.mark.parametrize(
    ("answer", "value", "right"),
    [
        (" Sacramento, Calif.", "sacramento", True),
        ("SACRAMENTO", "Sacramento", True),
        (" Sacra mento", "Sacramento", False),
        ("1,000", "1.000", False),  # not a pattern
        ("(a|b)*", "(A|B)*", True),
        ("the  year", "the year", False),  # spaces count
        ("", "x", False),
    ],
)
def test_contains(answer, value, right):
    assert contains(answer, value) is right
