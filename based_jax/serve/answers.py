"""Turn an engine's tokens into the chunks of OpenAI's answers: text, log-probabilities, finish reason.

A `Style` formats them for clients: as texts (completions) or as messages (chat completions).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from based_jax.data.file_tokenizer import FileTokenizer
from based_jax.data.tokenizers import StreamDecoder, Tokenizer, token_bytes
from based_jax.generate.engine.request import Event, TokenLogprob
from based_jax.generate.text import StopTexts

_LEAST = -9999.0  # stands for log 0, which JSON cannot represent
_UNDECODABLE = "\ufffd"


class Chunk(NamedTuple):
    """The new part of one answer that will not change any more."""

    text: str
    logprobs: list[tuple[int, TokenLogprob]]  # tokens that begin in the text so far, and their offsets
    finish: str | None  # "stop" or "length" with the last chunk


class Answer:
    """One answer in progress.

    Args:
        stop: texts that end it; they are not part of it.
        prompt: the prompt's tokens.
        echo: the prompt's text to return first, if the request asked for it.
        prompt_logprobs: whether to report the prompt's tokens, even if there is only one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str],
        prompt: Sequence[int] = (),
        echo: str = "",
        prompt_logprobs: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = StopTexts(stop)
        self._echo, self._prompted = echo, prompt[0] if prompt_logprobs else None
        """what the next chunk begins with: a text, and a prompt's tokens, of which this is the first"""
        self._decoder = StreamDecoder(tokenizer, prompt)
        self._begin = len(echo)  # offset of the answer's own text
        self._decoded = 0  # characters, those after a stop text included
        self._sent = 0
        self._held: list[tuple[int, TokenLogprob]] = []
        self.tokens = 0  # number made, without the separator
        self.finish: str | None = None  # why it ended; None while it runs

    def feed(self, event: Event) -> Chunk:
        """Return the chunk that an event adds; events after the end add nothing."""
        if self.finish is not None:
            return Chunk("", [], self.finish)
        first = [] if self._prompted is None else self._of_prompt(self._prompted, event.prompt_logprobs)
        text = ""
        for index, token in enumerate(event.tokens):
            self.tokens += 1
            begin, decoded = self._decoded, self._decoder.feed(token)
            text += self._read(decoded)
            if event.logprobs:
                # Text held back as part of a character may turn out not to be: then it is not the token's.
                known = decoded.lstrip(_UNDECODABLE)
                begin += len(decoded) - len(known) if known else 0
                self._held.append((begin, event.logprobs[index]))
            if self._stop.found:
                break
        if event.finish is not None and not self._stop.found:
            text += self._read(self._decoder.flush()) + self._stop.flush()
            if event.end is not None:
                self._held.append((self._decoded, event.end))
        self.finish = "stop" if self._stop.found else event.finish
        self._sent += len(text)
        text, self._echo, self._prompted = self._echo + text, "", None
        return Chunk(text, first + self._release(), self.finish)

    def _of_prompt(self, first: int, logprobs: Sequence[TokenLogprob]) -> list[tuple[int, TokenLogprob]]:
        """Return the prompt's tokens and their offsets; the first token has no log-probability: NaN."""
        decoder, begin, made = StreamDecoder(self._tokenizer), 0, []
        for item in (TokenLogprob(first, math.nan, ()), *logprobs):
            made.append((min(begin, len(self._echo)), item))
            begin += len(decoder.feed(item.token))
        return made

    def _read(self, decoded: str) -> str:
        self._decoded += len(decoded)
        return self._stop.feed(decoded)

    def _release(self) -> list[tuple[int, TokenLogprob]]:
        """Return tokens that begin in the sent text; at an end without a stop text, all of them."""
        everything = self.finish is not None and not self._stop.found
        known = len(self._held) if everything else sum(begin < self._sent for begin, _ in self._held)
        shown, self._held = self._held[:known], self._held[known:]
        return [(self._begin + begin, item) for begin, item in shown]


def logprobs_object(shown: Sequence[tuple[int, TokenLogprob]], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return OpenAI's `logprobs` object of a completion.

    `text_offset` counts characters of the answer's text. The first token of an echoed prompt has nulls.
    """
    columns: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for begin, item in shown:
        names, is_known = _names(item, tokenizer), not math.isnan(item.logprob)
        top = {names[token]: _finite(value) for token, value in ((item.token, item.logprob), *item.top)}
        columns["tokens"].append(names[item.token])
        columns["token_logprobs"].append(_finite(item.logprob) if is_known else None)
        columns["top_logprobs"].append(top if is_known else None)
        columns["text_offset"].append(begin)
    return columns


def chat_logprobs_object(shown: Sequence[tuple[int, TokenLogprob]], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return OpenAI's `logprobs` object of a message; `bytes` is None for a token that is not text."""

    def described(names: Mapping[int, str], token: int, logprob: float) -> dict[str, Any]:
        data = list(token_bytes(tokenizer, token)) or None
        return {"token": names[token], "logprob": _finite(logprob), "bytes": data}

    content = []
    for _, item in shown:
        names = _names(item, tokenizer)
        top = [described(names, *other) for other in item.top]
        content.append({**described(names, item.token, item.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _names(item: TokenLogprob, tokenizer: Tokenizer) -> dict[int, str]:
    return token_names(tokenizer, [item.token, *(token for token, _ in item.top)])


def token_text(tokenizer: Tokenizer, token: int) -> str | None:
    """Return the text of a token that follows others.

    None if it has no text, or if its bytes are not whole characters, or spell a character that has a token.
    """
    try:
        text = token_bytes(tokenizer, token).decode("utf-8")
    except UnicodeDecodeError:
        return None
    if isinstance(tokenizer, FileTokenizer) and token in tokenizer.byte_tokens:
        return None if text == " " or tokenizer.has_entry(text) else text
    return text or None


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text, its bytes (``bytes:\\xe2``), its name in the vocabulary, or ``token_id:N``."""
    if text := token_text(tokenizer, token):
        return text
    if data := token_bytes(tokenizer, token):
        letters = (chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in data)
        return f"bytes:{''.join(letters)}"
    entry = tokenizer.token_entry(token) if isinstance(tokenizer, FileTokenizer) else None
    return entry or f"token_id:{token}"


def token_names(tokenizer: Tokenizer, tokens: Iterable[int]) -> dict[int, str]:
    """Return the names of some tokens, no two alike: a later one with the same name is ``token_id:N``."""
    names: dict[int, str] = {}
    for token in dict.fromkeys(tokens):
        name = token_name(tokenizer, token)
        names[token] = f"token_id:{token}" if name in names.values() else name
    return names


def _finite(logprob: float) -> float:
    return max(float(logprob), _LEAST)


class TextStyle:
    """Format completions: `prefix` of an answer's id, `object` field of a whole answer and of a chunk."""

    prefix, name, chunk_name = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs

    def choice(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """Format a whole answer, given as one chunk."""
        logprobs = logprobs_object(chunk.logprobs, self._tokenizer) if self._logprobs else None
        return {"index": index, "text": chunk.text, "logprobs": logprobs, "finish_reason": chunk.finish}

    def deltas(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        """Format a chunk as a list of events; chunks of an answer must come in order."""
        return [self.choice(index, chunk)] if chunk.text or chunk.logprobs or chunk.finish else []


class ChatStyle:
    """Format chat completions: the role comes first, then the text, and last the finish reason."""

    prefix, name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs
        self._begun: set[int] = set()  # answers whose role has been sent

    def choice(self, index: int, chunk: Chunk) -> dict[str, Any]:
        message = {"role": "assistant", "content": chunk.text, "refusal": None}
        return {"index": index, "message": message, **self._ending(chunk.finish, chunk)}

    def deltas(self, index: int, chunk: Chunk) -> list[dict[str, Any]]:
        made = []
        if index not in self._begun:
            self._begun.add(index)
            made.append({"delta": {"role": "assistant", "content": ""}, **self._ending(None)})
        if chunk.text or chunk.logprobs:
            made.append({"delta": {"content": chunk.text}, **self._ending(None, chunk)})
        if chunk.finish:
            made.append({"delta": {}, **self._ending(chunk.finish)})
        return [{"index": index, **delta} for delta in made]

    def _ending(self, finish: str | None, chunk: Chunk | None = None) -> dict[str, Any]:
        known = chunk.logprobs if self._logprobs and chunk is not None else None
        logprobs = None if known is None else chat_logprobs_object(known, self._tokenizer)
        return {"logprobs": logprobs, "finish_reason": finish}


Style = TextStyle | ChatStyle
