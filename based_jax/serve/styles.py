"""Format answers for clients: as texts (completions) or as messages (chat completions)."""

from typing import Any

from based_jax.data.tokenizers import Tokenizer
from based_jax.serve.answers import Chunk, chat_logprobs_object, logprobs_object


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
