"""Make SQuAD a completion task: ``python -m papers.based.completion --step ask --data FILE --out FILE``.

The papers have a language model rewrite each question and its answer as a statement that ends with the
answer, and keep the rewrites that do: 2,984 of 5,000 (Based, E.3). The prompt is the passage followed by the
statement without its answer.

    ask    adds the column `request` to every row; any language model then answers it in a column `rewrite`
    keep   turns rows whose `rewrite` ends with the answer into text, question, value: the recall task's data
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from based_jax import command
from based_jax.evals.options import write_json_lines
from based_jax.evals.recall.data import read_rows
from based_jax.validate import expect

PROG = "python -m papers.based.completion"
COLUMNS = ("context", "question", "answers")

_REQUEST = (
    "Can you rewrite this question and answer as a statement. Ensure that the answer is the last part of the "
    "statement. \n \n Question: {question} \n\n Answer: {answer} \n\n Rewrite:"
)  # as printed in the paper, E.3
_CLOSING = " \t\r\n.!?\"'\u201d\u2019"  # may follow the answer at the end of a statement


@dataclasses.dataclass(frozen=True)
class Options:
    """Turn SQuAD's questions into texts that a language model completes with the answer."""

    step: Literal["ask", "keep"]
    """ask: write the requests for rewrites; keep: filter the rewrites and write the recall task's rows"""
    data: Path
    """.jsonl or .parquet file with SQuAD's columns context, question, answers; for keep also rewrite"""
    out: Path
    """.jsonl file to write"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = command.parse(Options, argv, prog=PROG)
    same = options.out.exists() and options.out.samefile(options.data)
    expect(not same, "out", str(options.out), "a file other than data")
    rows = read_rows(options.data, COLUMNS if options.step == "ask" else (*COLUMNS, "rewrite"))
    answers = [_answer(f"{options.data}, row {number}", row) for number, row in enumerate(rows)]
    made = []
    for row, answer in zip(rows, answers, strict=True):
        if options.step == "ask":
            made.append({**row, "request": request(row["question"], answer)})
        elif kept := complete(row["context"], row["question"], answer, row["rewrite"]):
            made.append(kept)
    write_json_lines(options.out, made)
    print(f"{options.out}: {len(made):,} of {len(rows):,} rows")


def request(question: str, answer: str) -> str:
    """Return the papers' request to GPT-4."""
    return _REQUEST.format(question=question, answer=answer)


def complete(passage: str, question: str, answer: str, rewrite: str) -> dict[str, str] | None:
    """Return a row of the recall task, or None if the rewrite does not end with the answer as whole words.

    Case, closing punctuation and quotation marks are ignored. A space joins passage and statement, as the
    papers do not specify a separator.

    Examples:
        >>> row = complete("P.", "Who?", "Denver Broncos", "The champions were the Denver Broncos.")
        >>> row["text"], row["value"]
        ('P. The champions were the', 'Denver Broncos')
    """
    statement, end = rewrite.strip().rstrip(_CLOSING), answer.strip().rstrip(_CLOSING)
    stem = statement[: len(statement) - len(end)]
    if not end or statement[len(stem) :].lower() != end.lower() or stem[-1:].isalnum():
        return None
    stem = stem.rstrip()
    return {"text": f"{passage.rstrip()} {stem}", "question": question, "value": answer} if stem else None


def _answer(where: str, row: Mapping[str, Any]) -> str:
    """Return the first of SQuAD's answers: ``{"text": [...]}``, or a string."""
    for column in ("context", "question", "rewrite"):
        expect(isinstance(row.get(column, ""), str), f"{where}, {column}", row.get(column), "a text")
    answers = row["answers"]
    texts = answers.get("text") if isinstance(answers, Mapping) else [answers]
    first = texts[0] if isinstance(texts, Sequence) and texts else None
    wanted = 'a text or {"text": [...]} with at least one'
    expect(isinstance(first, str), f"{where}, answers", answers, wanted)
    return str(first)


if __name__ == "__main__":
    command.run(PROG, main)
