"""The body of a completions request, read into plain values; whatever is wrong with it is reported.

Names, meanings and defaults are OpenAI's; `top_k`, `min_p` and `repetition_penalty` are added, as other
servers have them.
"""

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any, NoReturn

from based_jax.data.tokenizers import Tokenizer
from based_jax.generate.engine.request import Request
from based_jax.generate.sampling import Sampler
from based_jax.serve.body import parse, shorten
from based_jax.serve.errors import Refusal
from based_jax.serve.limits import Limits

MAX_LOGPROBS = 5
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_CHARACTERS = 32  # of a prompt for each token that it may have: checked before tokenizing

_SAMPLER = tuple(field.name for field in dataclasses.fields(Sampler))
_OWN = ("model", "prompt", "max_tokens", "n", "stop", "seed", "logprobs", "echo", "stream", "stream_options")
_READ = (*_OWN, *_SAMPLER)
_ALL = {"top_k": (-1, 0), "min_p": (0,)}  # how clients of other servers say that no token is left out
_IGNORED = ("user",)
_REFUSED = ("suffix", "logit_bias", "best_of")
_TOO_LONG = "context_length_exceeded"

Prompt = str | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class CompletionRequest:
    """A request as its client wrote it."""

    model: str | None
    prompts: tuple[Prompt, ...]
    sampler: Sampler
    max_tokens: int
    n: int  # answers to each prompt
    stop: tuple[str, ...]
    seed: int
    logprobs: int | None
    echo: bool
    stream: bool
    include_usage: bool

    @classmethod
    def read(cls, body: bytes) -> "CompletionRequest":
        """From JSON; a Refusal (status 400) names the field that is wrong."""
        fields = {name: value for name, value in parse(body).items() if value is not None}
        for name in fields:
            if name in _REFUSED:
                _refuse(name, f"{name} is not supported")
            if name not in (*_READ, *_IGNORED):
                known = f"expected one of {', '.join(_READ)}"
                param = name if name.isidentifier() and len(name) <= 60 else None
                _refuse(param, f"unknown field {shorten(name)}: {known}")
        made = cls(
            model=_typed(fields, "model", str, None, "a text"),
            prompts=_prompts(fields.get("prompt", "")),
            sampler=_sampler(fields),
            max_tokens=_integer(fields, "max_tokens", 16, 1),
            n=_integer(fields, "n", 1, 1),
            stop=_stop(fields.get("stop", ())),
            seed=_integer(fields, "seed", secrets.randbits(31), -(2**63), 2**63 - 1),
            logprobs=_integer(fields, "logprobs", None, 0, MAX_LOGPROBS),
            echo=_typed(fields, "echo", bool, False, "true or false"),
            stream=_typed(fields, "stream", bool, False, "true or false"),
            include_usage=_include_usage(fields),
        )
        if made.echo and made.logprobs is not None:
            _refuse("echo", "echo cannot be combined with logprobs: those of the prompt are not computed")
        return made

    def requests(self, tokenizer: Tokenizer, vocab_size: int, limits: Limits) -> list[Request]:
        """Return the engine's requests: `n` for each prompt, in order.

        A text is read after the tokenizer's separator, as every document in training; tokens are read as
        they are. Answer i to a prompt is sampled with seed + i. What is too long, or no token, is refused.
        """
        if len(self.prompts) * self.n > limits.choices:
            given = f"{len(self.prompts)} prompts times n = {shorten(self.n)}"
            _refuse("n", f"{given}: at most {limits.choices} answers")
        if self.max_tokens > limits.max_tokens:
            given = f"max_tokens = {shorten(self.max_tokens)}"
            _refuse("max_tokens", f"{given}: expected at most {limits.max_tokens}")
        made: list[Request] = []
        for prompt in self.prompts:
            most = limits.length * (MAX_CHARACTERS if isinstance(prompt, str) else 1)
            if len(prompt) > most:
                unit = "characters" if isinstance(prompt, str) else "tokens"
                _refuse("prompt", f"a prompt of {len(prompt)} {unit}: expected at most {most}", _TOO_LONG)
            tokens = _encode(prompt, tokenizer, vocab_size)
            if len(tokens) + self.max_tokens > limits.length:
                given = f"a prompt of {len(tokens)} tokens and max_tokens = {self.max_tokens}"
                _refuse("prompt", f"{given}: expected at most {limits.length} together", _TOO_LONG)
            options: Any = {"stop_tokens": (tokenizer.eot,), "logprobs": self.logprobs}
            first = Request(tokens, self.max_tokens, self.sampler, **options)
            made += [dataclasses.replace(first, seed=(self.seed + i) % 2**32) for i in range(self.n)]
        return made


def _encode(prompt: Prompt, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    if isinstance(prompt, str):
        try:
            return (tokenizer.eot, *tokenizer.encode(prompt).tolist())
        except ValueError as error:
            _refuse("prompt", f"prompt: {error}")
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < vocab_size:
            _refuse("prompt", f"prompt = {shorten(token)}: expected tokens in [0, {vocab_size})")
    return prompt


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """One text, several, one row of tokens, or several."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(part, str) for part in value):
            return tuple(value)
        if _are_integers(value):
            return (tuple(value),)
        if all(isinstance(part, list) and part and _are_integers(part) for part in value):
            return tuple(map(tuple, value))
    _refuse("prompt", "prompt: expected a text, a list of texts, a list of tokens, or a list of those")


def _stop(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    good = isinstance(stops, list | tuple) and len(stops) <= MAX_STOPS
    if not good or not all(map(_is_stop, stops)):
        _refuse("stop", f"stop: expected at most {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(stops)


def _is_stop(value: Any) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_STOP_LENGTH:
        return False
    # JSON can write halves of characters, which no answer has.
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _sampler(fields: Mapping[str, Any]) -> Sampler:
    given = {"temperature": 1.0, **{name: fields[name] for name in _SAMPLER if name in fields}}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(name, f"{name} = {shorten(value)}: expected a number")
    given = {name: value for name, value in given.items() if value not in _ALL.get(name, ())}
    try:
        return Sampler(**given)
    except ValueError as error:
        name, expected = str(error).partition(" = ")[0], str(error).partition(": ")[2]
        _refuse(name, f"{name} = {shorten(given[name])}: {expected}")


def _include_usage(fields: Mapping[str, Any]) -> bool:
    options = fields.get("stream_options", {})
    if not isinstance(options, dict) or not set(options) <= {"include_usage"}:
        _refuse("stream_options", "stream_options: expected an object with include_usage alone")
    if options and fields.get("stream") is not True:
        _refuse("stream_options", "stream_options: expected only with stream = true")
    return _typed(options, "include_usage", bool, False, "true or false")


def _integer(fields: Mapping[str, Any], name: str, default: Any, least: int, most: int | None = None) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        _refuse(name, f"{name} = {shorten(value)}: expected an integer, {bounds}")
    return value


def _typed(fields: Mapping[str, Any], name: str, kind: type, default: Any, expected: str) -> Any:
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        _refuse(name, f"{name} = {shorten(value)}: expected {expected}")
    return default if value is None else value


def _are_integers(values: list[Any]) -> bool:
    return set(map(type, values)) == {int}  # a million of them in milliseconds


def _refuse(param: str | None, message: str, code: str | None = None) -> NoReturn:
    raise Refusal(400, message, param=param, code=code)
