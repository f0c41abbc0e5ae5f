"""Adapt a language model to lm-eval: score continuations and texts, and continue texts.

results = lm_eval.simple_evaluate(LMEvalModel(model, params, tokenizer), tasks=["lambada_openai"])
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from based_jax.data.chat.template import Chat
from based_jax.data.tokenizers import Tokenizer, text_start
from based_jax.evals.lm_eval.continuations import (
    Request,
    Settings,
    continue_texts,
    keys_for,
    score_continuations,
)
from based_jax.evals.options import batches
from based_jax.evals.perplexity.scoring import expect_readable
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise ImportError(
        f"based_jax.evals.lm_eval: expected the package 'lm-eval' to be installed ({error}); "
        "it comes with: pip install 'based-jax[lm-eval]'"
    ) from error

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""(label, number of requests) -> context manager that returns a function to count finished requests."""


class LMEvalModel(TemplateLM):
    """A language model with lm-eval's interface.

    A text without context is read after the tokenizer's separator; texts longer than `max_length` are
    truncated on the left. Up to rounding (the order of sums), answers do not depend on the batch size.

    Args:
        max_length: maximum tokens to read; None for the model's training context.
        chat: the model's chat template, for tasks whose prompts are conversations.
        seed: for tasks that sample.
        progress: shows the progress of each kind of request.

    Raises:
        ValueError: the tokenizer has more tokens than the model, or a size is out of range.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: Params,
        tokenizer: Tokenizer,
        *,
        max_length: int | None = None,
        batch_size: int = 8,
        chat: Chat | None = None,
        seed: int = 0,
        progress: Progress = lambda label, total: nullcontext(lambda count: None),
    ) -> None:
        super().__init__()
        size = model.config.vocab_size
        expect(tokenizer.vocab_size <= size, "tokenizer.vocab_size", tokenizer.vocab_size, f"at most {size}")
        self.max_length = model.config.max_length if max_length is None else max_length
        expect(self.max_length >= 1, "max_length", self.max_length, "at least 1")
        expect_readable(model, "max_length", self.max_length)
        expect(batch_size >= 1, "batch_size", batch_size, "at least 1")
        self._model, self._params, self._tokens = model, params, tokenizer
        self._batch_size, self._seed, self._progress = batch_size, seed, progress
        self._chat = chat
        self.asked = False
        """whether lm-eval has prepared its tasks and sent the first requests"""

    @property
    def eot_token_id(self) -> int:
        """Return the token that starts a text."""
        return text_start(self._tokens)

    @property
    def tokenizer_name(self) -> str:
        """Return the name that lm-eval uses in its own request caches."""
        return self._tokens.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Encode a text, after the token that the tokenizer's file puts first; a conversation has its own."""
        if self._chat is not None and add_special_tokens is not False:
            return self._chat.tokens(string)
        return self._encode(string, add_special_tokens is not False)

    def _encode(self, string: str, starts: bool = True) -> list[int]:
        tokens = self._tokens.encode(string).tolist()
        is_put = starts and getattr(self._tokens, "puts_start", False)
        return [self.eot_token_id, *tokens] if is_put else tokens

    def apply_chat_template(self, chat_history: Sequence[Any], add_generation_prompt: bool = True) -> str:
        """Write a conversation as text; without a generation prompt it ends inside the last message."""
        expect(self._chat is not None, "chat", None, "a Chat, to write conversations")
        assert self._chat is not None
        return self._chat.text(chat_history, continues=not add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the template's source, which lm-eval stores with the results."""
        return None if self._chat is None else self._chat.source

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encode both as one text and cut it; encode the continuation alone if no token remains."""
        kept, tokens = super()._encode_pair(context, continuation)
        spaces = context[len(context.rstrip()) :]  # belong to the continuation
        return kept, tokens or self._tokens.encode(spaces + continuation).tolist()

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return log-probabilities (nats) of continuations after their contexts, and whether they are greedy.

        Raises:
            ValueError: a continuation without tokens, or with more than `max_length`.
        """
        for request in requests:  # lm-eval reads the first token of a continuation without context
            expect(any(request.args), "continuation", "", "a text that adds tokens to its context")
        return super().loglikelihood(list(requests), disable_tqdm=True)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        prepared = []
        for texts, context, continuation in requests:
            expect(bool(continuation), "continuation", texts[1], "a text that adds tokens to its context")
            size, most = len(continuation), self.max_length
            expect(size <= most, "continuation", f"{size} tokens", f"at most {most}, the context")
            # Truncate the context on the left, so that at most `max_length` tokens are read.
            kept = (context or [self.eot_token_id])[-(most + 1 - size) :]
            prepared.append(Request(kept, continuation))
        answers: list[Any] = [None] * len(requests)
        for number, score in self._scores("log-likelihoods", prepared):
            answers[number] = (score.log_prob, score.greedy)
            self.cache_hook.add_partial("loglikelihood", requests[number][0], answers[number])
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[float]:
        """Return log-probabilities (nats) of whole texts, in windows of `max_length` tokens.

        A start that the tokenizer's file puts before a text is predicted too, as in lm-eval's own backend.
        """
        windows = [
            (number, Request(*make_disjoint_window(window)))
            for number, request in enumerate(requests)
            for window in get_rolling_token_windows(
                self._encode(request.args[0]), self.eot_token_id, self.max_length, context_len=1
            )
        ]
        totals, missing = [0.0] * len(requests), Counter(owner for owner, _ in windows)
        for index, score in self._scores("windows of text", [window for _, window in windows]):
            owner = windows[index][0]
            totals[owner] += score.log_prob
            missing[owner] -= 1
            if not missing[owner]:
                self.cache_hook.add_partial("loglikelihood_rolling", requests[owner].args, totals[owner])
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        """Continue texts by the settings of their `generation_kwargs`; see `Settings.read`."""
        self.asked = True
        texts = [request.args[0] for request in requests]
        rows = [np.array(self.tok_encode(text) or [self.eot_token_id]) for text in texts]
        draws = _draws(texts)
        kinds: dict[Settings, list[int]] = {}
        for number, request in enumerate(requests):
            kinds.setdefault(Settings.read(request.args[1]), []).append(number)
        answers = [""] * len(requests)
        with self._progress("continuations", len(requests)) as advance:
            for kind, numbers in kinds.items():
                most = self.max_length - kind.max_tokens
                wanted = f"less than {self.max_length}, the context"
                expect(most >= 1, "max_gen_toks", kind.max_tokens, wanted)
                numbers.sort(key=lambda number: -len(rows[number]))
                for batch, filled in batches(numbers, self._batch_size):
                    prompts = [rows[number][-most:] for number in filled]
                    drawn = [draws[number] for number in filled]
                    keys = None if kind.sampler.greedy else keys_for(self._seed, drawn)
                    made = continue_texts(self._model, self._params, self._tokens, prompts, kind, keys)
                    for number, text in zip(batch, made, strict=False):
                        answers[number] = text
                        self.cache_hook.add_partial("generate_until", requests[number].args, text)
                    advance(len(batch))
        return answers

    def _scores(self, label: str, requests: Sequence[Request]) -> Iterable[Any]:
        self.asked = True
        scores = score_continuations(self._model, self._params, requests, batch_size=self._batch_size)
        with self._progress(label, len(requests)) as advance:
            for pair in scores:
                yield pair
                advance(1)


def _draws(texts: Sequence[str]) -> list[int]:
    """Return what a text's samples depend on: a checksum of it and of how many equal ones are before it."""
    counts, draws = Counter[str](), []
    for text in texts:
        draws.append(zlib.crc32(f"{counts[text]} {text}".encode("utf-8", "surrogatepass")))
        counts[text] += 1
    return draws
