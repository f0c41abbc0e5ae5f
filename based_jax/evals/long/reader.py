"""Ask a model questions about long texts: read prompts in chunks, then try answers from their states.

The state of a recurrent model does not grow with the prompt, so its memory is constant. A model with KV
caches needs them twice.
"""

import inspect
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tokenizers import Tokenizer, decode_after
from based_jax.evals.card.subject import switched_off
from based_jax.evals.long.questions import Question
from based_jax.evals.recall.protocol import contains
from based_jax.evals.target_scores import target_scores
from based_jax.generate.capacity import capacity_for
from based_jax.generate.pool import Text, begin, decode, new_rows, read_chunk
from based_jax.generate.prompt import bucket, chunk_sizes, pad_to, read_prompt
from based_jax.generate.sampling import Sampler, row_settings
from based_jax.models import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect


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


class Seconds(NamedTuple):
    """What a batch costs, if its programs were compiled before."""

    read: float
    """per token of a prompt"""
    decode: float
    """per token that is generated, of all rows at once"""


class Reader:
    """A model with compiled programs for batches of questions.

    Args:
        off: mixer whose layers are switched off.
        chunk: prompt tokens that are read at a time.
    """

    def __init__(self, model: LanguageModel, params: Params, *, off: str | None = None, chunk: int = 512):
        self.model, silenced = switched_off(model, off)
        self.params, self.chunk = params, chunk
        self.compiled: set[Any] = set()

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

    def ask(self, questions: Sequence[Question], tokenizer: Tokenizer) -> tuple[list[Answer], Seconds | None]:
        """Read the prompts as one batch and answer them.

        Returns:
            The answers, and their costs unless a program was compiled for this batch.

        Raises:
            ValueError: a prompt beyond the model's positions, tokens outside of its vocabulary, or
                log-probabilities that are not finite.
        """
        prompts = [question.tokens(tokenizer) for question in questions]
        budget = max(question.budget(tokenizer) for question in questions)
        state, read = self._state_after(prompts, budget)
        ranks = self._ranks(state, questions, tokenizer)
        shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
        tokens, decode = self._greedy(state, budget)
        sizes = set(chunk_sizes(max(map(len, prompts)), self.chunk))
        key = str((shapes, sorted(sizes), bucket(budget)))
        seconds = Seconds(read / sum(map(len, prompts)), decode / budget) if key in self.compiled else None
        self.compiled.add(key)
        answers = []
        for question, prompt, row, found in zip(questions, prompts, tokens, ranks, strict=True):
            made = decode_after(tokenizer, prompt, row[: question.budget(tokenizer)])
            text = made.partition("\n")[0]
            matches = [contains(text, value) for value in question.answers]
            match = float(any(matches)) if question.is_any_enough else float(np.mean(matches))
            found = found.min(keepdims=True) if question.is_any_enough else found
            answers.append(Answer(text, match, float((found == 1).mean()), float(found.mean())))
        return answers, seconds

    def _state_after(self, rows: Sequence[np.ndarray], budget: int) -> tuple[Text, float]:
        prompt, most = read_prompt(rows, None, self.model.config.vocab_size), self.model.config.max_positions
        length = prompt.tokens.shape[1]
        expect(not most or length + budget <= most, "length", length + budget, f"at most the model's {most}")
        chunks = chunk_sizes(length, self.chunk)
        prompt = pad_to(prompt, sum(chunks))
        text = begin(self.model, len(rows), capacity_for(self.model, length + budget))
        start = time.perf_counter()
        for offset, end in itertools.pairwise(itertools.accumulate(chunks, initial=0)):
            chunk = prompt.tokens[:, offset:end]
            text = self._read(self.params, text, chunk, prompt.lengths, offset)
        jax.block_until_ready(text.hidden)
        return text, time.perf_counter() - start

    def _ranks(self, state: Text, questions: Sequence[Question], tokenizer: Tokenizer) -> list[np.ndarray]:
        """Return the rank of each right answer of each question among the wrong ones."""
        rows = [
            [tokenizer.encode(question.space + text) for text in (*question.answers, *question.wrong)]
            for question in questions
        ]
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

    def _greedy(self, text: Text, budget: int) -> tuple[np.ndarray, float]:
        pool = new_rows(text, row_settings([Sampler()] * len(text.hidden), None), None, budget)
        start = time.perf_counter()
        _, made = self._decode(self.params, pool, budget, chunk=bucket(budget))
        return np.asarray(made.choice.token)[:, :budget], time.perf_counter() - start


def _score(model, params, text, tokens, mask):
    """Return the log-probability of each row's tokens after its prompt."""
    h, _ = model.apply(params, tokens, text.state, mask=mask, method="hidden")
    before = jnp.concatenate([text.hidden[:, None].astype(h.dtype), h[:, :-1]], axis=1)
    loss, _, _ = target_scores(model, params, before.reshape(-1, before.shape[-1]), tokens.reshape(-1))
    return -jnp.where(mask, loss.reshape(mask.shape), 0).sum(axis=1)
