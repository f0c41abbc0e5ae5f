"""Requests to an engine and its answers: plain values, no arrays."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from based_jax.generate.sampling import Sampler
from based_jax.validate import expect, expect_integer

Finish = Literal["stop", "length", "cancelled", "failed"]
""""failed": the model's logits became NaN, so there is no next token."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt and how to continue it.

    Its tokens are those of `generate(model, params, [prompt], max_new_tokens, ...)` with the sampler's
    settings and `rng=jax.random.key(seed)[None]`, whatever other requests the engine answers.

    Raises:
        TypeError, ValueError: a field of the wrong type or out of its range.
    """

    prompt: Sequence[int]
    """tokens, at least one; kept as a tuple"""
    max_new_tokens: int = 64
    """most tokens to generate, a stop token included; 0 only reads the prompt"""
    sampler: Sampler = dataclasses.field(default_factory=Sampler)
    """how tokens are chosen"""
    seed: int = 0
    """seed of the sampling, in [0, 2^32): the request's key is `jax.random.key(seed)`"""
    stop_tokens: Sequence[int] = ()
    """tokens that end the continuation; they are not part of it"""
    logprobs: int | None = None
    """report each token's log-probability, and this many of the most likely tokens; None reports neither"""
    prompt_logprobs: bool = False
    """also report the prompt's tokens but the first; the whole prompt is then read again, even if a prefix of
    it is known"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _integers("prompt", self.prompt))
        expect(len(self.prompt) > 0, "prompt", self.prompt, "at least one token")
        object.__setattr__(self, "stop_tokens", _integers("stop_tokens", self.stop_tokens))
        expect_integer("max_new_tokens", self.max_new_tokens, 0)
        if not isinstance(self.sampler, Sampler):
            raise TypeError(f"sampler = {self.sampler!r}: expected a Sampler")
        expect_integer("seed", self.seed, 0, 2**32 - 1)
        if self.logprobs is not None:
            expect_integer("logprobs", self.logprobs, 0)
        else:
            expected = "False, or logprobs set as well"
            expect(not self.prompt_logprobs, "prompt_logprobs", self.prompt_logprobs, expected)


class TokenLogprob(NamedTuple):
    """How likely a token was under the model itself, before penalties, temperature and truncation."""

    token: int
    logprob: float
    """natural logarithm"""
    top: tuple[tuple[int, float], ...]
    """(token, log-probability) of the most likely tokens, most likely first; as many as requested"""


class Event(NamedTuple):
    """The output of one round for one request."""

    ticket: int
    tokens: tuple[int, ...]
    """new tokens, without the stop token"""
    logprobs: tuple[TokenLogprob, ...] = ()
    """one per token if requested, else none"""
    finish: Finish | None = None
    """why this is the request's last event; None if more events follow"""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """of the prompt's tokens but the first, in the first event, if requested"""
    end: TokenLogprob | None = None
    """the stop token's, if there was one and log-probabilities were requested"""


class Completion(NamedTuple):
    """The complete answer to a request."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: Finish
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """see `Event`, also for the next field"""
    end: TokenLogprob | None = None


class Stats(NamedTuple):
    """What an engine holds now, and what it has done since it was made."""

    waiting: int
    """requests that have not been started"""
    prefilling: int
    """requests whose prompt is being read"""
    running: int
    """requests in the pool"""
    free: int
    """slots that a waiting request could take"""
    rows: int
    """rows of the pool on the device, idle ones included"""
    made_tokens: int
    """tokens delivered"""
    prefilled_tokens: int
    """prompt tokens that were read"""
    cached_tokens: int
    """prompt tokens that the prefix cache supplied"""
    finished: int
    """requests answered"""
    cancelled: int
    """requests cancelled"""


class Full(RuntimeError):
    """`max_waiting` requests wait already: try again later."""


def _integers(argument: str, tokens: Any) -> tuple[int, ...]:
    array = np.asarray(tokens)
    array = array if array.size or array.ndim != 1 else np.zeros(0, np.int32)  # NumPy: [] is of floats
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{argument} = {tokens!r}: expected a row of integers")
    return tuple(array.tolist())
