"""The fields that completions and chat completions share.

Names, meanings and defaults are OpenAI's; `top_k`, `min_p` and `repetition_penalty` are added, as in other
servers.
"""

import dataclasses
import functools
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta

from based_jax.data.tokenizers import Tokenizer
from based_jax.generate.engine.request import Request
from based_jax.generate.sampling import Sampler
from based_jax.serve.answers import Echo
from based_jax.serve.body import decode, refuse, shorten
from based_jax.serve.limits import Limits

MAX_CHARACTERS = 32  # of a prompt per token that it may have: checked before tokenizing
TOO_LONG = "context_length_exceeded"

Count = Annotated[int, Meta(ge=1)]
Token = Annotated[int, Meta(ge=0)]
TopTokens = Annotated[int, Meta(ge=0, le=5)]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]

MAX_LOGPROBS = 5

_ALL = {"top_k": (-1, 0), "min_p": (0,)}  # values by which clients of other servers disable them


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool = False


class SharedFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request as its client wrote it, without the fields that are null."""

    refused: ClassVar[Mapping[str, str]] = {}
    """fields of OpenAI's API that are not served -> why"""
    neutral: ClassVar[Mapping[str, Sequence[bytes]]] = {}
    """fields that are refused or unknown -> the values by which they ask for nothing; JSON without spaces"""

    model: str | None = None
    n: Count = 1
    stop: Stop | Annotated[tuple[Stop, ...], Meta(max_length=16)] = ()
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = msgspec.field(
        default_factory=functools.partial(secrets.randbits, 31)
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Read JSON; a Refusal (status 400) names the field that is wrong."""
        return decode(body, cls, cls.refused, cls.neutral)

    def __post_init__(self) -> None:
        self.stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if self.stream_options and not self.stream:
            refuse("stream_options", "stream_options: expected only with stream = true")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def echoed(self, number: int, request: Request, tokenizer: Tokenizer) -> Echo | None:
        """Return the prompt to send before answer `number`, whose request is given; None for none."""
        return None

    def sampler(self) -> Sampler:
        """Return the sampler; a setting out of its range is refused."""
        given: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(Sampler)
        }
        given |= {name: None for name, values in _ALL.items() if given[name] in values}
        try:
            return Sampler(**given)
        except ValueError as error:
            refuse(str(error).partition(" = ")[0], str(error))

    def copies(self, request: Request) -> list[Request]:
        """Return a prompt's requests: answer i is sampled with seed + i."""
        return [dataclasses.replace(request, seed=(self.seed + i) % 2**32) for i in range(self.n)]


def expect_served(n: int, prompts: int, max_tokens: int, limits: Limits) -> None:
    """Refuse more answers to one request, or more tokens of one, than the server makes."""
    if prompts * n > limits.choices:
        refuse("n", f"{prompts} prompts times n = {shorten(n)}: at most {limits.choices} answers")
    if max_tokens > limits.max_tokens:
        given = f"max_tokens = {shorten(max_tokens)}"
        refuse("max_tokens", f"{given}: expected at most {limits.max_tokens}")


def expect_short(param: str, what: str, count: int, most: int, suffix: str = "") -> None:
    """Refuse a prompt that is longer than the model may read."""
    if count > most:
        refuse(param, f"{what}: expected at most {most}{suffix}", TOO_LONG)
