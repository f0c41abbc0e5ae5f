"""Recall tasks: reading the published columns, prompts, answers and scores."""

import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from based_jax.data.tokenizers import ByteTokenizer, FileTokenizer
from based_jax.evals.recall.data import TASKS, Example, read_examples
from based_jax.evals.recall.protocol import contains, cut_around, make_prompt, read_answer
from tests.data.libraries import llama

BYTES = ByteTokenizer()
ROWS = [{"doc_id": "a", "text": "The year: 1999\nyear:", "key": "year", "value": "1999"}]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_rows_are_read_from_json_lines_and_parquet(tmp_path):
    rows = [ROWS[0], {**ROWS[0], "text": "\u2028Ort:", "key": "Ort", "value": "Köln"}]
    expected = [Example(0, "The year: 1999\nyear:", "year", "1999"), Example(1, "\u2028Ort:", "Ort", "Köln")]
    assert read_examples("swde", write(tmp_path / "rows.jsonl", rows)) == expected
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert read_examples("fda", str(tmp_path / "rows.parquet")) == expected
    with pytest.raises(ValueError, match=r"rows.parquet, row 0 = .*expected columns .*; no question here$"):
        read_examples("squad_completion", str(tmp_path / "rows.parquet"))


def test_squads_key_is_its_question(tmp_path):
    row = {"text": "It is", "question": "What?", "value": "this"}
    found = read_examples("squad_completion", write(tmp_path / "rows.jsonl", [row]))
    assert found == [Example(0, "It is", "What?", "this")]
    path = write(tmp_path / "more.jsonl", [{**row, "context": "It is."}])
    assert read_examples("squad_completion", path, passages=True)[0].passage == "It is."
    with pytest.raises(ValueError, match=r"rows.jsonl, row 0 = .*; no context here$"):
        read_examples("squad_completion", str(tmp_path / "rows.jsonl"), passages=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a", "key": "b"}', "row 0 = .*: expected columns text, key, value; no value here"),
        ('{"text": "a", "key": "b", "value": 3}', r"rows.jsonl, row 0, value = 3: expected a text"),
        ('{"text": "", "key": "b", "value": "c"}', "row 0 = '': expected a text that is not empty"),
        ("{", r"rows.jsonl, line 1: expected (a )?JSON"),
        ("[]", r"rows.jsonl, row 0 = .*expected a JSON object"),
        ("", r"data = .*: expected at least one row"),
    ],
)
def test_wrong_rows_are_named(tmp_path, content, message):
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_examples("swde", str(tmp_path / "rows.jsonl"))


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data = .*none.jsonl': expected a file"):
        read_examples("swde", str(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match=r"data = 'rows.csv': expected a .jsonl or .parquet file"):
        read_examples("swde", "rows.csv")
    with pytest.raises(ValueError, match="task = 'other': expected one of 'swde', 'fda', 'squad_completion'"):
        read_examples("other", "rows.jsonl")


def test_the_hub_gives_the_validation_rows(monkeypatch):
    class Hub:
        @staticmethod
        def load_dataset(name, config, split):
            asked.append((name, split))
            if name == "none":
                raise RuntimeError("no such thing\nat all")
            return ROWS

    asked = []
    monkeypatch.setattr("based_jax.data.hub.import_optional", lambda *_: Hub)
    for task, source in TASKS.items():
        if task != "squad_completion":
            assert read_examples(task, "hub")[0].value == "1999"
            assert asked[-1] == (source.hub, "validation")
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


FACTS = "Name: Ada. Born in 1815 in London, and buried in Hucknall."


@pytest.mark.parametrize(
    ("copies", "prompt"),
    [
        (1, f"{FACTS} Born:"),
        (2, f"Information about Born. {FACTS}\n{FACTS} Born:"),
        (3, f"Information about Born. {FACTS}\n{FACTS}\n{FACTS} Born:"),
    ],
)
def test_the_document_is_shown_several_times_and_the_question_once(copies, prompt):
    # The stored questions go, whatever their case, and SWDE's summary with its keys.
    for end in ("\nBorn:born:", " \n born:", "\nSummary of information above...\nName: Ada\nborn:"):
        example = Example(0, FACTS.rstrip(".") + end, "born", "1815")
        assert make_prompt(example, BYTES, copies=copies).text == prompt


@pytest.mark.parametrize(
    ("copies", "prompt"),
    [(1, "It is by Ada"), (2, "Whose? It is.\nIt is by Ada"), (3, "Whose? It is.\nIt is.\nIt is by Ada")],
)
def test_squads_passage_is_shown_before_its_stored_text(copies, prompt):
    example = Example(0, " It is by Ada ", "Whose?", "me", "It is. Question: Whose?")
    assert make_prompt(example, BYTES, copies=copies).text == prompt


def test_every_copy_of_a_long_document_keeps_the_answer():
    example = Example(0, "a" * 300 + " Born in 1815 " + "z" * 300 + "\nborn:", "born", "1815")
    prompt = make_prompt(example, BYTES, copies=2, document_tokens=40, context=48 + 200)
    shown = "a" * 19 + " Born in 1815 " + "z" * 7 + "."  # half before the key's first mention
    assert prompt.text == f"Information about Born. {shown}\n{shown} Born:"
    assert not prompt.truncated
    nothing = cut_around("0123456789", ("x", "y"), BYTES, 6)
    assert nothing == "789"  # the end, if there is nothing to find
    for wrong in ({"copies": 0}, {"copies": 2, "document_tokens": 0}):
        with pytest.raises(ValueError, match=r"(repeat_context|document_tokens) = 0: expected at least 1"):
            make_prompt(example, BYTES, **wrong)


def test_cuts_keep_characters_and_spaces():
    words = FileTokenizer(llama().to_str())
    document = "hello é☃😀 hello hello"
    for tokenizer in (BYTES, words):
        for size in range(1, 9):
            assert cut_around(document, ("😀",), tokenizer, 2 * size) in document
    assert cut_around(document, ("hello",), words, 6) == "hello"
    assert cut_around(document, ("nothing",), words, 12) == " hello"


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
