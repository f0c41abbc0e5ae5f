"""From an engine's tokens to the chunks of OpenAI's answers: text, log-probabilities, why it ended."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from based_jax.data.tokenizers import StreamDecoder, Tokenizer
from based_jax.generate.engine.request import Event, TokenLogprob
from based_jax.generate.text import StopTexts

_LEAST = -9999.0  # stands for log 0, which JSON cannot say
_UNDECODABLE = "\ufffd"


class Chunk(NamedTuple):
    """What became certain of one answer."""

    text: str
    logprobs: list[tuple[int, TokenLogprob]]  # tokens that begin in the text so far, and where
    finish: str | None  # "stop" or "length" with the last chunk


class Answer:
    """One answer while it is made.

    Args:
        stop: texts that end it; they are no part of it.
        prompt: text that comes first, if the request asked for an echo.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], prompt: str = "") -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._stop = StopTexts(stop)
        self._prompt = prompt
        self._decoded = 0  # characters, those after a stop text included
        self._sent = 0
        self._held: list[tuple[int, TokenLogprob]] = []
        self.tokens = 0  # made until the end of the text, the separator not counted
        self.finish: str | None = None  # why it ended; None while it goes on

    def feed(self, event: Event) -> Chunk:
        """Return what an event adds; events after the end add nothing."""
        if self.finish is not None:
            return Chunk("", [], self.finish)
        text = ""
        for place, token in enumerate(event.tokens):
            self.tokens += 1
            begin, decoded = self._decoded, self._decoder.feed(token)
            text += self._read(decoded)
            if event.logprobs:
                # What was held back as a part of a character may prove to be none: it is not the token's.
                known = decoded.lstrip(_UNDECODABLE)
                begin += len(decoded) - len(known) if known else 0
                self._held.append((begin, event.logprobs[place]))
            if self._stop.found:
                break
        if event.finish is not None and not self._stop.found:
            text += self._read(self._decoder.flush()) + self._stop.flush()
        self.finish = "stop" if self._stop.found else event.finish
        self._sent += len(text)
        text, self._prompt = self._prompt + text, ""
        return Chunk(text, self._release(), self.finish)

    def _read(self, decoded: str) -> str:
        self._decoded += len(decoded)
        return self._stop.feed(decoded)

    def _release(self) -> list[tuple[int, TokenLogprob]]:
        """Tokens that begin in what was sent; at an end without a stop text, all of them."""
        everything = self.finish is not None and not self._stop.found
        known = len(self._held) if everything else sum(begin < self._sent for begin, _ in self._held)
        shown, self._held = self._held[:known], self._held[known:]
        return shown


def logprobs_object(shown: Sequence[tuple[int, TokenLogprob]], tokenizer: Tokenizer) -> dict[str, Any]:
    """OpenAI's `logprobs` of a completion.

    `text_offset` counts characters of the answer's text. A token that is no text of its own, such as a part
    of a character, is named ``token_id:N``.
    """

    def named(token: int, logprob: float) -> tuple[str, float]:
        text = tokenizer.decode([token])
        name = text if text and _UNDECODABLE not in text else f"token_id:{token}"
        return name, max(float(logprob), _LEAST)

    own = [named(item.token, item.logprob) for _, item in shown]
    return {
        "tokens": [name for name, _ in own],
        "token_logprobs": [logprob for _, logprob in own],
        "top_logprobs": [
            dict([pair, *(named(*other) for other in item.top)])
            for pair, (_, item) in zip(own, shown, strict=True)
        ],
        "text_offset": [begin for begin, _ in shown],
    }
