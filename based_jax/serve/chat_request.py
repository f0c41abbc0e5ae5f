"""Chat completions: the fields of a request, and the engine's requests that it asks for."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from based_jax.data.chat.template import Chat
from based_jax.generate.engine.request import Request
from based_jax.serve.body import refuse
from based_jax.serve.fields import MAX_CHARACTERS, Count, SharedFields, TopTokens, expect_served, expect_short
from based_jax.serve.limits import Limits

_TOOLS = "the server runs no tools"


class TextPart(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A part of a message's content."""

    text: str


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message. Fields of type None are those that clients send back with an answer's message."""

    role: str
    content: str | list[TextPart]
    name: str | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None

    def texts(self) -> Mapping[str, str]:
        """Return the fields that a template reads."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": self.role, "content": text, **({} if self.name is None else {"name": self.name})}


class ChatRequest(SharedFields, kw_only=True):
    """The fields of a chat completions request."""

    refused: ClassVar = {
        **dict.fromkeys(("tools", "tool_choice", "functions", "function_call"), _TOOLS),
        "response_format": "answers are texts",
        "chat_template": "the template is the model's own",
    }
    neutral: ClassVar = {
        **dict.fromkeys(("tools", "functions"), (b"[]",)),
        **dict.fromkeys(("tool_choice", "function_call"), (b'"none"',)),
        "response_format": (b'{"type":"text"}',),
        "modalities": (b'["text"]',),
        "metadata": (b"{}",),
        "service_tier": (b'"auto"', b'"default"'),
        "store": (b"false",),
    }

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: Count | None = None  # None for as many as the server allows
    max_completion_tokens: Count | None = None  # the newer name
    logprobs: bool = False
    top_logprobs: TopTokens = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_logprobs and not self.logprobs:
            refuse("top_logprobs", f"top_logprobs = {self.top_logprobs}: expected only with logprobs = true")

    def requests(self, chat: Chat, limits: Limits) -> list[Request]:
        """Return the engine's requests, `n` of the same prompt."""
        asked = self.max_completion_tokens or self.max_tokens
        least = asked or 1
        expect_served(self.n, 1, least, limits)
        sampler = self.sampler()
        messages, most = [message.texts() for message in self.messages], limits.length * MAX_CHARACTERS
        given = sum(len(text) for message in messages for text in message.values())
        expect_short("messages", f"messages of {given} characters", given, most)
        try:
            text = chat.text(messages)
            expect_short("messages", f"a prompt of {len(text)} characters", len(text), most)
            tokens = chat.tokens(text)
        except ValueError as error:
            refuse("messages", f"messages: {error}")
        together = f"a prompt of {len(tokens)} tokens and max_tokens = {least}"
        expect_short("messages", together, len(tokens) + least, limits.length, " together")
        count = asked or min(limits.length - len(tokens), limits.max_tokens)
        logprobs = self.top_logprobs if self.logprobs else None
        request = Request(tokens, count, sampler, stop_tokens=chat.stop_tokens, logprobs=logprobs)
        return self.copies(request)
