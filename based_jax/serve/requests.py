"""Completions and chat completions: their fields, and the engine's requests that they ask for."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from based_jax.data.chat.template import Chat
from based_jax.data.tokenizers import Tokenizer, complete_text, stop_tokens, text_start
from based_jax.generate.engine.request import Request
from based_jax.serve.fields import (
    MAX_CHARACTERS,
    Count,
    Limits,
    SharedFields,
    Token,
    TopTokens,
    expect_served,
    expect_short,
    refuse,
    shorten,
)

_PROMPT = "prompt: expected a text, a list of texts, a list of tokens, or a list of those"

Row = Annotated[tuple[Token, ...], Meta(min_length=1)]
Prompt = str | tuple[int, ...]


class CompletionRequest(SharedFields, kw_only=True):
    """The fields of a completions request."""

    refused: ClassVar = {
        "suffix": "the model has not learned to fill in what is missing before a suffix",
        "best_of": "take the best of n answers by their logprobs",
    }
    neutral: ClassVar = {"suffix": (b'""',), "best_of": (b"1",)}

    prompt: str | Annotated[list[str | Token | Row], Meta(min_length=1)] = ""
    max_tokens: Token = 16
    logprobs: TopTokens | None = None
    echo: bool = False

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """One text, several texts, one list of tokens, or several lists."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        kinds = set(map(type, self.prompt))
        if len(kinds) > 1:
            refuse("prompt", _PROMPT)
        return (tuple(self.prompt),) if kinds == {int} else tuple(self.prompt)  # pyright: ignore[reportReturnType]

    def requests(self, tokenizer: Tokenizer, vocab_size: int, limits: Limits) -> list[Request]:
        """Return the engine's requests: `n` for each prompt, in order.

        A text is read after the tokenizer's separator, like every document in training; tokens are read as
        they are. A prompt that is too long or has invalid tokens is refused.
        """
        expect_served(self.n, len(self.prompts), self.max_tokens, limits)
        sampler, made = self.sampler(), []
        for prompt in self.prompts:
            most = limits.length * (MAX_CHARACTERS if isinstance(prompt, str) else 1)
            unit = "characters" if isinstance(prompt, str) else "tokens"
            expect_short("prompt", f"a prompt of {len(prompt)} {unit}", len(prompt), most)
            tokens = _encode(prompt, tokenizer, vocab_size)
            given = f"a prompt of {len(tokens)} tokens and max_tokens = {self.max_tokens}"
            expect_short("prompt", given, len(tokens) + self.max_tokens, limits.length, " together")
            request = Request(
                tokens,
                self.max_tokens,
                sampler,
                stop_tokens=stop_tokens(tokenizer),
                logprobs=self.logprobs,
                prompt_logprobs=self.echo and self.logprobs is not None,
            )
            made += self.copies(request)
        return made

    def echoed(self, number: int, tokenizer: Tokenizer) -> str:
        prompt = self.prompts[number // self.n] if self.echo else ""
        return prompt if isinstance(prompt, str) else complete_text(tokenizer, prompt)


def _encode(prompt: Prompt, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return (text_start(tokenizer), *tokenizer.encode(prompt).tolist())
    if max(prompt) >= vocab_size:
        refuse("prompt", f"prompt = {shorten(max(prompt))}: expected tokens in [0, {vocab_size})")
    return prompt


_TOOLS = "the server runs no tools"


class TextPart(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A part of a message's content."""

    text: str


Nothing = Annotated[list[Any], Meta(max_length=0)] | None
"""null, or an empty list"""


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message. Fields of type None or Nothing are those that clients send back with an answer's message."""

    role: str
    content: str | list[TextPart]
    name: str | None = None
    refusal: None = None
    annotations: Nothing = None
    audio: None = None
    function_call: None = None
    tool_calls: Nothing = None

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
