"""Read the body of a chat completions request into plain values and report what is wrong with it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from based_jax.data.chat.template import Chat
from based_jax.data.tokenizers import Tokenizer
from based_jax.generate.engine.request import Request
from based_jax.generate.sampling import Sampler
from based_jax.serve import fields as read
from based_jax.serve.answers import Echo
from based_jax.serve.body import shorten
from based_jax.serve.completion_request import MAX_CHARACTERS, MAX_LOGPROBS
from based_jax.serve.fields import TOO_LONG, refuse
from based_jax.serve.limits import Limits

_OWN = (
    *("model", "messages", "max_tokens", "max_completion_tokens", "n", "stop", "seed"),
    *("logprobs", "top_logprobs", "stream", "stream_options"),
)
_TOOLS = "the server runs no tools"
_REFUSED = {
    **dict.fromkeys(("tools", "tool_choice", "functions", "function_call"), _TOOLS),
    "response_format": "answers are texts",
    "chat_template": "the template is the model's own",
}
_NEUTRAL = {
    **dict.fromkeys(("tools", "functions"), ([],)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none",)),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
"""Fields that are refused or unknown, unless they have one of these values."""
_MESSAGE = "messages: expected a list of objects with role and content, which are texts, and maybe name"


@dataclasses.dataclass(frozen=True)
class ChatRequest:
    """A request as its client wrote it."""

    model: str | None
    messages: tuple[Mapping[str, str], ...]
    sampler: Sampler
    max_tokens: int | None  # None for as many as the server allows
    n: int
    stop: tuple[str, ...]
    seed: int
    logprobs: int | None
    stream: bool
    include_usage: bool

    @property
    def candidates(self) -> int:
        """Number of answers that are generated: those that are returned."""
        return self.n

    @classmethod
    def read(cls, body: bytes) -> "ChatRequest":
        """Read JSON; a Refusal (status 400) names the field that is wrong."""
        fields = read.read_fields(body, (*_OWN, *read.SAMPLER), _REFUSED, _NEUTRAL)
        newer = "max_completion_tokens" in fields
        shows = read.read_typed(fields, "logprobs", bool, False, "true or false")
        top = read.read_integer(fields, "top_logprobs", 0, 0, MAX_LOGPROBS)
        if top and not shows:
            refuse("top_logprobs", f"top_logprobs = {top}: expected only with logprobs = true")
        return cls(
            model=read.read_typed(fields, "model", str, None, "a text"),
            messages=_messages(fields.get("messages")),
            sampler=read.read_sampler(fields),
            max_tokens=read.read_integer(fields, "max_completion_tokens" if newer else "max_tokens", None, 1),
            n=read.read_integer(fields, "n", 1, 1),
            stop=read.read_stop(fields),
            seed=read.read_seed(fields),
            logprobs=top if shows else None,
            stream=read.read_typed(fields, "stream", bool, False, "true or false"),
            include_usage=read.read_include_usage(fields),
        )

    def requests(self, tokenizer: Tokenizer, chat: Chat, vocab_size: int, limits: Limits) -> list[Request]:
        """Return the engine's requests, `n` of the same prompt; answer i is sampled with seed + i."""
        read.expect_served("n", self.n, 1, self.max_tokens or 1, limits)
        read.expect_biases_known(self.sampler, vocab_size)
        most = limits.length * MAX_CHARACTERS
        given = sum(len(text) for message in self.messages for text in message.values())
        if given > most:
            refuse("messages", f"messages of {given} characters: expected at most {most}", TOO_LONG)
        try:
            text = chat.text(self.messages)
            if len(text) > most:
                refuse("messages", f"a prompt of {len(text)} characters: expected at most {most}", TOO_LONG)
            tokens = chat.tokens(text)
        except ValueError as error:
            refuse("messages", f"messages: {error}")
        left = limits.length - len(tokens)
        if left < (self.max_tokens or 1):
            given = f"a prompt of {len(tokens)} tokens and max_tokens = {self.max_tokens or 1}"
            refuse("messages", f"{given}: expected at most {limits.length} together", TOO_LONG)
        count = self.max_tokens or min(left, limits.max_tokens)
        first = Request(tokens, count, self.sampler, stop_tokens=chat.stop_tokens, logprobs=self.logprobs)
        return [dataclasses.replace(first, seed=(self.seed + i) % 2**32) for i in range(self.n)]

    def echoed(self, number: int, request: Request, tokenizer: Tokenizer) -> Echo | None:
        """Return None: no prompt is returned before a message."""
        return None


def _messages(value: Any) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list) or not value:
        refuse("messages", _MESSAGE)
    return tuple(map(_message, value))


def _message(value: Any) -> Mapping[str, str]:
    """Read one message, whose content may be a list of texts."""
    if not isinstance(value, dict):
        refuse("messages", _MESSAGE)
    message = {name: part for name, part in value.items() if part is not None}
    unknown = sorted(set(message) - {"role", "content", "name"})
    if unknown:
        refuse("messages", f"messages: {shorten(unknown[0])} is not supported; expected role, content, name")
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "".join(map(_part, content))
    if not {"role", "content"} <= set(message) or not all(isinstance(x, str) for x in message.values()):
        refuse("messages", _MESSAGE)
    return message


def _part(value: Any) -> str:
    good = isinstance(value, dict) and set(value) == {"type", "text"} and value["type"] == "text"
    if not good or not isinstance(value["text"], str):
        refuse("messages", 'messages: expected parts of a content to be {"type": "text", "text": a text}')
    return value["text"]
