"""Completions: the fields of a request, and the engine's requests that it asks for."""

from typing import Annotated, ClassVar

from msgspec import Meta

from based_jax.data.tokenizers import Tokenizer, complete_text, stop_tokens
from based_jax.generate.engine.request import Request
from based_jax.serve.answers import Echo
from based_jax.serve.body import refuse, shorten
from based_jax.serve.fields import MAX_CHARACTERS, SharedFields, Token, TopTokens, expect_served, expect_short
from based_jax.serve.limits import Limits

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

    def echoed(self, number: int, request: Request, tokenizer: Tokenizer) -> Echo | None:
        if not self.echo:
            return None
        prompt = self.prompts[number // self.n]
        text = prompt if isinstance(prompt, str) else complete_text(tokenizer, prompt)
        return Echo(text, request.prompt, request.prompt_logprobs)


def _encode(prompt: Prompt, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return (tokenizer.eot, *tokenizer.encode(prompt).tolist())
    if max(prompt) >= vocab_size:
        refuse("prompt", f"prompt = {shorten(max(prompt))}: expected tokens in [0, {vocab_size})")
    return prompt
