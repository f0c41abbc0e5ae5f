"""Ask a model questions about long texts: read prompts in chunks, then try answers from their states.

The state of a recurrent model does not grow with the prompt, so its memory is constant. A model with KV
caches needs them twice.
"""

import inspect
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data import load_documents
from based_jax.data.readers import FASTA_EXTENSIONS, kind_of
from based_jax.data.tokenizers import Tokenizer, decode_after
from based_jax.evals.card.subject import switched_off
from based_jax.evals.long.questions import Material, Passage, Question, make_question
from based_jax.evals.options import Records, batches
from based_jax.evals.perplexity.scoring import target_scores
from based_jax.evals.recall.protocol import contains
from based_jax.files import is_text, read_json_lines, read_text
from based_jax.generate.pool import Text, begin, decode, new_rows, read_chunk
from based_jax.generate.prompt import bucket, chunk_sizes, pad_to, read_prompt
from based_jax.generate.sampling import Sampler, row_settings
from based_jax.generate.states import capacity_for, longest_text
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
    records: Records,
    *,
    batch_size: int,
    chunk: int,
) -> Iterator[int]:
    """Answer every item without a record, in the order of `items`.

    Yields:
        After each batch, its number of new records.
    """
    missing = [item for item in items if item.id not in records.by_id]
    for off, alike in itertools.groupby(missing, lambda item: item.off):
        reader = Reader(model, params, off=off, chunk=chunk)
        for _, group in itertools.groupby(alike, lambda item: (item.family, item.length)):
            for batch, filled in batches(list(group), batch_size):
                questions = [
                    make_question(item.family, item.length, item.depth, item.sample, tokenizer, material)
                    for item in filled
                ]
                answers, costs = reader.ask(questions, tokenizer)
                yield records.add(
                    {
                        "id": item.id,
                        **item._asdict(),
                        "answers": question.answers,
                        **answer._asdict(),
                        "chance": question.chance,
                        **costs,
                    }
                    for item, question, answer in zip(batch, questions, answers, strict=False)
                )


class Answer(NamedTuple):
    """How a model answers a question."""

    generated: str
    """its greedy text, up to the first newline"""
    match: float
    """share of the right answers in it; 1 or 0 if one of them is enough"""
    first: float
    """share of the right answers that are more likely than all wrong ones"""
    rank: float
    """mean rank of a right answer among the wrong ones, from 1"""


class Reader:
    """A model with compiled programs for batches of questions.

    Args:
        off: mixer whose layers are switched off.
        chunk: prompt tokens that are read at a time.
    """

    def __init__(self, model: LanguageModel, params: Params, *, off: str | None = None, chunk: int = 512):
        self.model, silenced = switched_off(model, off)
        self.params, self.chunk, self._compiled = params, chunk, set[str]()

        def within(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **sizes: int) -> Any:
                with silenced():
                    return function(self.model, *args, **sizes)

            return call

        def read(*args: Any) -> Text:
            return read_chunk(*args)[1]

        self._read = jax.jit(within(read), donate_argnums=1)
        self._score = jax.jit(within(_score))
        make = within(inspect.unwrap(decode))  # which is traced anew, without the mixer
        self._decode = jax.jit(make, static_argnames="chunk", donate_argnums=1)

    def ask(
        self, questions: Sequence[Question], tokenizer: Tokenizer
    ) -> tuple[list[Answer], dict[str, float | None]]:
        """Read the prompts as one batch and answer them.

        Returns:
            The answers; and the milliseconds for a token of a prompt, "read_ms", and for a generated token of
            all rows at once, "decode_ms", or None for each if a program was compiled for this batch.

        Raises:
            ValueError: a prompt beyond the model's positions, tokens outside of its vocabulary, or
                log-probabilities that are not finite.
        """
        prompts = [question.tokens(tokenizer) for question in questions]
        budget = max(question.budget(tokenizer) for question in questions)
        chunks = sorted(set(chunk_sizes(max(map(len, prompts)), self.chunk)))
        tried = [
            [question.answer_tokens(text, tokenizer) for text in (*question.answers, *question.wrong)]
            for question in questions
        ]
        longest = max(budget, *(len(tokens) for row in tried for tokens in row))
        clock = time.perf_counter()
        state = jax.block_until_ready(self._state_after(prompts, longest))
        read = (time.perf_counter() - clock) / sum(map(len, prompts))
        programs = str((jax.tree.map(jnp.shape, state), chunks, bucket(budget)))
        ranks = self._ranks(state, questions, tried)
        clock = time.perf_counter()
        tokens = self._greedy(state, budget)
        costs = {"read_ms": 1e3 * read, "decode_ms": 1e3 * (time.perf_counter() - clock) / budget}
        known = costs if programs in self._compiled else dict.fromkeys(costs)
        self._compiled.add(programs)
        answers = []
        for question, prompt, row, found in zip(questions, prompts, tokens, ranks, strict=True):
            made = decode_after(tokenizer, prompt, row[: question.budget(tokenizer)])
            text = made.partition("\n")[0]
            matches = [contains(text, value) for value in question.answers]
            match = float(any(matches)) if question.is_any_enough else float(np.mean(matches))
            found = found.min(keepdims=True) if question.is_any_enough else found
            answers.append(Answer(text, match, float((found == 1).mean()), float(found.mean())))
        return answers, known

    def _state_after(self, rows: Sequence[np.ndarray], longest: int) -> Text:
        prompt, most = read_prompt(rows, None, self.model.config.vocab_size), longest_text(self.model.config)
        length = prompt.tokens.shape[1]
        expect(
            not most or length + longest <= most,
            "length",
            length + longest,
            f"at most the model's {most}",
        )
        chunks = chunk_sizes(length, self.chunk)
        prompt = pad_to(prompt, sum(chunks))
        state = begin(self.model, len(rows), capacity_for(self.model, length + longest))
        for offset, end in itertools.pairwise(itertools.accumulate(chunks, initial=0)):
            chunk = prompt.tokens[:, offset:end]
            state = self._read(self.params, state, chunk, prompt.lengths, offset)
        return state

    def _ranks(
        self, state: Text, questions: Sequence[Question], rows: Sequence[Sequence[np.ndarray]]
    ) -> list[np.ndarray]:
        """Return the rank of each right answer of each question among the wrong ones.

        Args:
            rows: the tokens of each question's right answers, then of its wrong ones.
        """
        width = bucket(max(len(tokens) for row in rows for tokens in row))
        scores = []
        for column in range(max(map(len, rows))):
            tokens, mask = np.zeros((2, len(rows), width), np.int32)
            for index, row in enumerate(rows):
                tried = row[min(column, len(row) - 1)]
                tokens[index, : len(tried)], mask[index, : len(tried)] = tried, 1
            scores.append(np.asarray(self._score(self.params, state, tokens, mask.astype(bool))))
        expect(bool(np.isfinite(scores).all()), "log-probability", "NaN or infinite", "finite numbers")
        by_row = np.stack(scores, axis=1)
        ranks = []
        for question, row in zip(questions, by_row, strict=True):
            right, end = len(question.answers), len(question.answers) + len(question.wrong)
            ranks.append(1 + (row[right:end][None] >= row[:right, None]).sum(axis=1))
        return ranks

    def _greedy(self, state: Text, budget: int) -> np.ndarray:
        pool = new_rows(state, row_settings([Sampler()] * len(state.hidden), None), None, budget)
        _, made = self._decode(self.params, pool, budget, chunk=bucket(budget))
        return np.asarray(made.choice.token)[:, :budget]


def _score(model, params, text, tokens, mask):
    """Return the log-probability of each row's tokens after its prompt."""
    h, _ = model.apply(params, tokens, text.state, mask=mask, method="hidden")
    before = jnp.concatenate([text.hidden[:, None].astype(h.dtype), h[:, :-1]], axis=1)
    loss, _, _ = target_scores(model, params, before.reshape(-1, before.shape[-1]), tokens.reshape(-1))
    return -jnp.where(mask, loss.reshape(mask.shape), 0).sum(axis=1)


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
        good = len(texts) > 2 and all(is_text(text) and text for text in texts)
        wanted = "an object with text, question and answer: a text or a list of texts"
        expect(good, "questions", f"{path}, row {number}", wanted)
        passages.append(Passage(texts[0], texts[1], tuple(texts[2:])))
    return passages
