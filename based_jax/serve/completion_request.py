"""Read the body of a completions request into plain values and report what is wrong with it."""

import dataclasses
from typing import Any

from based_jax.data.tokenizers import Tokenizer, complete_text, stop_tokens
from based_jax.generate.engine.request import Request
from based_jax.generate.sampling import Sampler
from based_jax.serve import fields as read
from based_jax.serve.answers import Echo
from based_jax.serve.body import shorten
from based_jax.serve.fields import TOO_LONG, refuse
from based_jax.serve.limits import Limits

MAX_LOGPROBS = 5
MAX_CHARACTERS = 32  # of a prompt per token that it may have: checked before tokenizing

_OWN = (
    *("model", "prompt", "max_tokens", "n", "best_of", "stop", "seed", "logprobs", "echo"),
    *("stream", "stream_options"),
)
_REFUSED = {"suffix": "the model has not learned to fill in what is missing before a suffix"}

Prompt = str | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class CompletionRequest:
    """A request as its client wrote it."""

    model: str | None
    prompts: tuple[Prompt, ...]
    sampler: Sampler
    max_tokens: int
    n: int  # answers returned per prompt
    candidates: int  # answers generated per prompt (`best_of`)
    stop: tuple[str, ...]
    seed: int
    logprobs: int | None
    echo: bool
    stream: bool
    include_usage: bool

    @classmethod
    def read(cls, body: bytes) -> "CompletionRequest":
        """Read JSON; a Refusal (status 400) names the field that is wrong."""
        fields = read.read_fields(body, (*_OWN, *read.SAMPLER), _REFUSED, {"suffix": ("",)})
        n = read.read_integer(fields, "n", 1, 1)
        made = cls(
            model=read.read_typed(fields, "model", str, None, "a text"),
            prompts=_prompts(fields.get("prompt", "")),
            sampler=read.read_sampler(fields),
            max_tokens=read.read_integer(fields, "max_tokens", 16, 0),
            n=n,
            candidates=read.read_integer(fields, "best_of", n, 1),
            stop=read.read_stop(fields),
            seed=read.read_seed(fields),
            logprobs=read.read_integer(fields, "logprobs", None, 0, MAX_LOGPROBS),
            echo=read.read_typed(fields, "echo", bool, False, "true or false"),
            stream=read.read_typed(fields, "stream", bool, False, "true or false"),
            include_usage=read.read_include_usage(fields),
        )
        if made.candidates < made.n:
            refuse("best_of", f"best_of = {made.candidates}: expected at least n = {shorten(made.n)}")
        if made.stream and made.candidates > made.n:
            given = f"best_of = {shorten(made.candidates)}"
            refuse("best_of", f"{given}: expected n with stream, as the best is known at the end only")
        return made

    def requests(self, tokenizer: Tokenizer, vocab_size: int, limits: Limits) -> list[Request]:
        """Return the engine's requests: `candidates` for each prompt, in order.

        A text is read after the tokenizer's separator, like every document in training; tokens are read as
        they are. Answer i to a prompt is sampled with seed + i. A prompt that is too long or has invalid
        tokens is refused.
        """
        name = "n" if self.candidates == self.n else "best_of"
        read.expect_served(name, self.candidates, len(self.prompts), self.max_tokens, limits)
        read.expect_biases_known(self.sampler, vocab_size)
        logprobs = 0 if self.logprobs is None and self.candidates > self.n else self.logprobs
        made: list[Request] = []
        for prompt in self.prompts:
            most = limits.length * (MAX_CHARACTERS if isinstance(prompt, str) else 1)
            if len(prompt) > most:
                unit = "characters" if isinstance(prompt, str) else "tokens"
                refuse("prompt", f"a prompt of {len(prompt)} {unit}: expected at most {most}", TOO_LONG)
            tokens = _encode(prompt, tokenizer, vocab_size)
            if len(tokens) + self.max_tokens > limits.length:
                given = f"a prompt of {len(tokens)} tokens and max_tokens = {self.max_tokens}"
                refuse("prompt", f"{given}: expected at most {limits.length} together", TOO_LONG)
            options: Any = {"stop_tokens": stop_tokens(tokenizer), "logprobs": logprobs}
            options["prompt_logprobs"] = self.echo and self.logprobs is not None
            first = Request(tokens, self.max_tokens, self.sampler, **options)
            seeds = ((self.seed + i) % 2**32 for i in range(self.candidates))
            made += [dataclasses.replace(first, seed=seed) for seed in seeds]
        return made

    def echoed(self, number: int, request: Request, tokenizer: Tokenizer) -> Echo | None:
        """Return the prompt to send before answer `number`, whose request is given; None for none."""
        if not self.echo:
            return None
        prompt = self.prompts[number // self.candidates]
        text = prompt if isinstance(prompt, str) else complete_text(tokenizer, prompt)
        return Echo(text, request.prompt, request.prompt_logprobs)


def _encode(prompt: Prompt, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    if isinstance(prompt, str):
        try:
            return (tokenizer.eot, *tokenizer.encode(prompt).tolist())
        except ValueError as error:
            refuse("prompt", f"prompt: {error}")
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < vocab_size:
            refuse("prompt", f"prompt = {shorten(token)}: expected tokens in [0, {vocab_size})")
    return prompt


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """Read one text, several texts, one list of tokens, or several lists."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(part, str) for part in value):
            return tuple(value)
        if _are_integers(value):
            return (tuple(value),)
        if all(isinstance(part, list) and part and _are_integers(part) for part in value):
            return tuple(map(tuple, value))
    refuse("prompt", "prompt: expected a text, a list of texts, a list of tokens, or a list of those")


def _are_integers(values: list[Any]) -> bool:
    return set(map(type, values)) == {int}  # checks a million in milliseconds
