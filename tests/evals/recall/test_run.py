"""Recall tasks end to end: a copying stand-in for a model, and a tiny model."""

import json

import jax
import numpy as np
import pytest

from based_jax.convert import save_pretrained
from based_jax.data.tokenizers import ByteTokenizer, FileTokenizer
from based_jax.evals.options import Opened, Records, digest
from based_jax.evals.recall import __main__ as recall
from based_jax.evals.recall.protocol import Example, answer, greedy, make_batches, make_prompt, summarize
from tests.commands import refused
from tests.data.libraries import llama
from tests.generate.tiny import make_bytes

BYTES = ByteTokenizer()
CONTEXT = 48 + 32  # prompts of at most 32 tokens: one or two lengths are compiled
ROWS = [
    {"text": "name: Ada\ntown: London\nname:", "key": "name", "value": "ada"},
    {"text": "year: 1815\nyear:", "key": "year", "value": "1815"},
    {"text": "town: Paris\nyear: 1815\ntown:", "key": "town", "value": "Rome"},
    {"text": "name: Charles Babbage, 1791\nmachine: engine\nname:", "key": "name", "value": "Charles"},
    {"text": "a: b\na:", "key": "a", "value": "b"},
]
EXAMPLES = [Example(number, **row) for number, row in enumerate(ROWS)]
PROMPTS = [make_prompt(example, BYTES, context=CONTEXT) for example in EXAMPLES]


class Copier:
    """Repeats what followed the last line's words before, as a model that recalls would, and then goes on."""

    def __init__(self):
        self.batches = []

    def __call__(self, rows):
        self.batches.append([BYTES.decode(row) for row in rows])
        answers = []
        for text in self.batches[-1]:
            *known, cue = text.split("\n")
            found = [line.removeprefix(cue) for line in known if line.startswith(cue)]
            answers.append([*f"{found[0] if found else '?'}\nmore\n".encode()])
        return np.array([row + [-1] * (48 - len(row)) for row in answers])


def run(prompts=PROMPTS, generator=None, path=None, digest="run", **options):
    records = Records(path, digest, int, "model")
    list(answer(prompts, BYTES, generator or Copier(), records, **options))
    return records.by_id


@pytest.fixture(scope="module")
def model():
    return make_bytes("L")


@pytest.fixture(scope="module")
def directory(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("pretrained")
    save_pretrained(path, *model)
    (path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("padding", ["correct", "authors"])
def test_a_model_that_copies_is_right_where_the_prompt_has_the_answer(padding):
    records = run(batch_size=2, padding=padding)
    # The third asks for something else; of the fourth the beginning is cut off, with the answer in it.
    assert [records[row]["score"] for row in range(5)] == [1, 1, 0, 0, 1]
    assert records[0] == {
        "id": 0,
        "tokens": 28,
        "truncated": False,
        "answer": "ada",
        "generated": " Ada",
        "score": 1,
        "run": "run",
    }
    assert records[3]["truncated"]
    assert records[3]["generated"] == "?"
    assert summarize(records.values()) == {
        "contains": pytest.approx(60.0),
        "standard_error": pytest.approx(100 * np.sqrt(0.6 * 0.4 / 4)),
        "examples": 5,
        "truncated": 1,
    }


def test_batches_are_padded_as_the_authors_pad_them():
    rows = []

    def look(batch):
        rows.append([list(row) for row in batch])
        return np.full((len(batch), 48), 10)

    run([*PROMPTS[:3], PROMPTS[4]], look, batch_size=3, padding="authors")
    first, second, third, last = (list(ROWS[row]["text"].encode()) for row in (0, 2, 1, 4))
    # Longest first, separators before the prompts; the last batch is filled up.
    assert rows == [[first, second, [256] * (len(first) - len(third)) + third], [last] * 3]


def test_correct_batches_hold_rows_that_are_read_with_one_shape():
    batches = list(make_batches(PROMPTS, 2, "correct"))
    # Prompts of 51 (cut to 32), 28, 28, 16 and 7 tokens: the first three are read as 32, the others as 16.
    assert [[prompt.example.id for prompt in batch] for batch, _ in batches] == [[3, 0], [2], [1, 4]]


def test_answers_do_not_depend_on_the_batch(model):
    generator = greedy(*model, BYTES)
    alone = run(generator=generator, batch_size=1)
    assert run(generator=generator, batch_size=4) == alone
    assert len({record["generated"] for record in alone.values()}) == 5  # the model does read its prompts
    # Visible padding changes what the shorter rows of a batch say, and only theirs.
    authors = run(generator=generator, batch_size=4, padding="authors")
    changed = [row for row in alone if authors[row]["generated"] != alone[row]["generated"]]
    assert changed
    assert not {3} & set(changed)


@pytest.mark.parametrize("padding", ["correct", "authors"])
def test_a_run_continues_from_its_records(tmp_path, padding):
    path = tmp_path / "new" / "records.jsonl"
    whole = run(batch_size=2, padding=padding)
    records = Records(path, "run", int, "model")
    stopped = answer(PROMPTS, BYTES, Copier(), records, batch_size=2, padding=padding)
    assert next(stopped) == 2
    stopped.close()
    path.write_bytes(path.read_bytes()[:-5])  # the second record is cut short
    copier = Copier()
    assert run(generator=copier, path=path, batch_size=2, padding=padding) == whole
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == list(range(5))
    # The authors' first batch is made again as it was; with correct padding only what is missing.
    read = {text for batch in copier.batches for text in batch}
    assert len(read) == (5 if padding == "authors" else 4)
    assert run(generator=None, path=path, batch_size=2, padding=padding) == whole


def test_records_of_another_run_are_refused(tmp_path, model):
    path = tmp_path / "records.jsonl"
    run(path=path)
    with pytest.raises(ValueError, match=r"records = .*: expected a new file or one of this run"):
        Records(path, "another", int, "model")
    opened = Opened(*model, BYTES, tmp_path)
    assert digest(opened, a=1, b=2) == digest(opened, b=2, a=1)
    assert digest(opened, a=1) != digest(opened, a=2)
    changed = jax.tree.map(lambda leaf: leaf + 1, opened.params)
    assert digest(opened, a=1) != digest(opened._replace(params=changed), a=1)
    assert digest(opened, a=1) != digest(opened._replace(tokenizer=FileTokenizer(llama().to_str())), a=1)


def call_of(directory, *flags):
    data = ("--data", str(directory / "rows.jsonl"))
    return ["--checkpoint", str(directory), "--task", "fda", "--context", str(CONTEXT), *data, *flags]


def test_the_command(directory, model, tmp_path, capsys):
    records, result = tmp_path / "records.jsonl", tmp_path / "result.json"
    flags = ("--batch-size", "4", "--records", str(records), "--json", str(result))
    recall.main(call_of(directory, "--limit", "3", *flags))
    lines = records.read_text().splitlines()
    assert len(lines) == 3
    recall.main(call_of(directory, *flags))
    assert records.read_text().splitlines()[:3] == lines
    found = run(generator=greedy(*model, BYTES), batch_size=4)
    kept = {row["id"]: row["generated"] for row in map(json.loads, records.read_text().splitlines())}
    assert kept == {row: record["generated"] for row, record in found.items()}

    content = json.loads(result.read_text())
    assert content["examples"] == 5
    assert content["truncated"] == 1
    assert content["contains"] == pytest.approx(100 * np.mean([row["score"] for row in found.values()]))
    assert content["options"]["padding"] == "correct"
    assert {"model": "attn-1b", "contains": 68.87}.items() <= content["published"][5].items()
    assert f"{records} has 3 of 5 examples" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--task", "other"), "--task"),
        (("--batch-size", "0"), "batch_size = 0: expected at least 1"),
        (("--limit", "0"), "limit = 0: expected at least 1"),
        (("--context", "48"), "context = 48: expected more than"),
        (("--data", "none.jsonl"), "none.jsonl"),
        (("--json", "."), "json = '.': expected a file that can be written"),
        (("--data", __file__, "--json", __file__), "expected a file that nothing is read from"),
        (("--checkpoint", "nowhere/at/all"), "nowhere/at/all"),
        (("--tokenizer", "none.json"), "none.json"),
        (("--task", "squad_completion"), "no question here"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_one_line(directory, capsys, flags, message):
    assert message in refused(recall.PROG, recall.main, call_of(directory, *flags), capsys)
