"""SQuAD as completion: which rewrites are kept, and what they become."""

import json

import pytest

from based_jax import command
from based_jax.evals.recall.data import read_examples
from papers.based import completion
from papers.based.completion import complete, request


@pytest.mark.parametrize(
    ("answer", "rewrite", "stem"),
    [
        ("Denver Broncos", "The champions were the Denver Broncos.", "The champions were the"),
        ("denver broncos", 'The champions were "Denver Broncos".', 'The champions were "'),
        ("St. Mary.", " It was St. Mary. ", "It was"),
        ("two", "There were forty-two", "There were forty-"),
        ("two", "It has network", None),  # not a whole word
        ("Denver Broncos", "The Denver Broncos were the champions.", None),
        ("Denver", "Denver", None),  # nothing is left to complete
        ("?", "What?", None),
        ("", "What?", None),
        ("long answer indeed", "deed", None),
    ],
)
def test_a_rewrite_is_kept_if_it_ends_with_the_answer(answer, rewrite, stem):
    row = complete("A passage.\n", "Who?", answer, rewrite)
    expected = {"text": f"A passage. {stem}", "question": "Who?", "value": answer}
    assert row == (None if stem is None else expected)


def test_the_command_asks_and_keeps(tmp_path, capsys):
    squad = [
        {"context": "P.", "question": "Who {won}?", "answers": {"text": ["Ada", "Lovelace"]}, "id": "x"},
        {"context": "P.", "question": "When?", "answers": "1815"},
    ]
    asked, rewritten, kept = (tmp_path / name for name in ("asked.jsonl", "rewritten.jsonl", "kept.jsonl"))
    rewritten.write_text("".join(json.dumps(row) + "\n" for row in squad))
    completion.main(["--step", "ask", "--data", str(rewritten), "--out", str(asked)])
    rows = [json.loads(line) for line in asked.read_text().splitlines()]
    assert [row["request"] for row in rows] == [request("Who {won}?", "Ada"), request("When?", "1815")]
    assert rows[0]["request"].endswith("\n \n Question: Who {won}? \n\n Answer: Ada \n\n Rewrite:")
    assert rows[0]["id"] == "x"

    rewrites = ["The winner was Ada.", "1815 was the year."]
    lines = [json.dumps({**row, "rewrite": text}) for row, text in zip(rows, rewrites, strict=True)]
    rewritten.write_text("\n".join(lines))
    completion.main(["--step", "keep", "--data", str(rewritten), "--out", str(kept)])
    assert capsys.readouterr().out == f"{asked}: 2 of 2 rows\n{kept}: 1 of 2 rows\n"
    (example,) = read_examples("squad_completion", str(kept))
    assert (example.text, example.key, example.value) == ("P. The winner was", "Who {won}?", "Ada")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "P.", "question": "Q", "answers": "a"}, "no rewrite here"),
        ({"context": "P.", "question": "Q", "answers": {"text": []}, "rewrite": "r"}, "row 0, answers = "),
        (
            {"context": "P.", "question": 3, "answers": "a", "rewrite": "r"},
            "row 0, question = 3: expected a text",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, row, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    argv = ["--step", "keep", "--data", str(path), "--out", str(tmp_path / "out.jsonl")]
    with pytest.raises(SystemExit) as ended:
        command.run(completion.PROG, lambda: completion.main(argv))
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_the_data_are_not_overwritten(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"out = .*: expected a file other than data"):
        completion.main(["--step", "ask", "--data", str(path), "--out", str(path)])
