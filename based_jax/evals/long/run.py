"""Ask a model all questions of a run that have no record yet, in batches of one length."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.data import load_documents
from based_jax.data.readers import FASTA_EXTENSIONS, kind_of
from based_jax.data.tokenizers import Tokenizer
from based_jax.evals.long.questions import Material, Passage, make_question
from based_jax.evals.long.reader import Reader
from based_jax.files import read_json_lines, read_text
from based_jax.json_lines import JsonLines
from based_jax.models import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect

_MOST_BYTES = 64 << 20
"""of a text around needles, and of a file of questions"""


class Item(NamedTuple):
    """What a question is about; equal items are equal questions."""

    off: str | None
    """mixer that is switched off"""
    family: str
    length: int
    depth: float
    sample: str
    """seed and number"""

    @property
    def id(self) -> str:
        """A name for a record."""
        return "/".join(map(str, self))


def ask(
    items: Sequence[Item],
    model: LanguageModel,
    params: Params,
    tokenizer: Tokenizer,
    material: Material,
    records: JsonLines,
    *,
    run: str,
    batch_size: int,
    chunk: int,
) -> Iterator[int]:
    """Answer every item without a record, in the order of `items`; new records name the `run`.

    Yields:
        After each batch, its number of new records.
    """
    done = {record["id"] for record in records.rows}
    missing = [item for item in items if item.id not in done]
    for off, alike in itertools.groupby(missing, lambda item: item.off):
        reader = Reader(model, params, off=off, chunk=chunk)
        for _, group in itertools.groupby(alike, lambda item: (item.family, item.length)):
            for batch in _batches(list(group), batch_size):
                # Repeat the last question in a smaller batch, so that one batch size compiles one program.
                filled = [*batch, *batch[-1:] * (batch_size - len(batch))]
                questions = [
                    make_question(item.family, item.length, item.depth, item.sample, tokenizer, material)
                    for item in filled
                ]
                answers, seconds = reader.ask(questions, tokenizer)
                costs = {
                    "read_ms": seconds and 1e3 * seconds.read,
                    "decode_ms": seconds and 1e3 * seconds.decode,
                }
                asked = zip(batch, questions, answers, strict=False)
                new: list[Any] = [
                    {
                        "id": item.id,
                        **item._asdict(),
                        "answers": question.answers,
                        **answer._asdict(),
                        "chance": 1 / (1 + len(question.wrong)),
                        **costs,
                        "run": run,
                    }
                    for item, question, answer in asked
                ]
                records.append(new)
                yield len(new)


def _batches(items: list[Item], size: int) -> Iterator[list[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def is_fasta(path: str) -> bool:
    """Return whether a file's extension is one of FASTA."""
    return kind_of(Path(path))[0] in FASTA_EXTENSIONS


def read_sentences(path: str) -> list[str]:
    """Split a text file into lines and sentences, or a FASTA file into sequences.

    Raises:
        OSError, ValueError: no such file, more than 64 MiB of text, not UTF-8, or without text.
    """
    if is_fasta(path):
        return [document.text for document in load_documents(path, max_bytes=_MOST_BYTES).documents]
    text = read_text(path, max_bytes=_MOST_BYTES)
    lines = [line.strip() for line in text.replace(". ", ".\n").splitlines()]
    sentences = [line for line in lines if line]
    expect(len(sentences) > 0, "haystack", path, "a file with text")
    return sentences


def read_passages(path: Path) -> list[Passage]:
    """Read questions: a JSON object per line with `text`, `question` and `answer`, a text or a list of them.

    Raises:
        OSError, ValueError: no such file, or a line of another form.
    """
    passages = []
    for number, row in enumerate(read_json_lines(path, max_bytes=_MOST_BYTES), start=1):
        fields: Mapping[str, Any] = row if isinstance(row, dict) else {}
        answer = fields.get("answer")
        answers = answer if isinstance(answer, list) else [answer]
        texts: list[Any] = [fields.get("text"), fields.get("question"), *answers]
        good = len(texts) > 2 and all(isinstance(text, str) and text for text in texts)
        wanted = "an object with text, question and answer: a text or a list of texts"
        expect(good, "questions", f"{path}, row {number}", wanted)
        passages.append(Passage(texts[0], texts[1], tuple(texts[2:])))
    return passages
