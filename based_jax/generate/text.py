"""Continue a text: encode a prompt, stream its continuation, stop at given texts."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from based_jax.data.tokenizers import StreamDecoder, Tokenizer, stop_tokens, text_start
from based_jax.generate.loop import stream
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect


class StopTexts:
    """Cut a text that arrives in chunks before the first stop text, however it is split into chunks.

    Examples:
        >>> cut = StopTexts(["\\n\\n"])
        >>> [cut.feed(chunk) for chunk in ("one\\n", "two\\n", "\\nthree")], cut.found
        (['one', '\\ntwo', ''], True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        stops = (stops,) if isinstance(stops, str) else stops
        for stop in stops:
            expect(isinstance(stop, str) and bool(stop), "stop", stop, "texts that are not empty")
        self._stops = tuple(stops)
        self._held = ""
        self.found = False
        """whether a stop text was found; nothing after it is returned"""

    def feed(self, chunk: str) -> str:
        """Return the text that is now certain to come before any stop text."""
        if self.found:
            return ""
        text = self._held + chunk
        # The one that ends first comes first, whatever the chunks are.
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in self._stops if stop in text]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        # The end of the text may be the beginning of a stop text: hold back the longest such end.
        longest = min(len(text), max(map(len, self._stops), default=0))
        ends = (text[-size:] for size in range(longest, 0, -1))
        held = next((len(end) for end in ends if any(stop.startswith(end) for stop in self._stops)), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """Return the text that was held back; call it at the end of the text."""
        held, self._held = self._held, ""
        return held


class TextStream:
    """The continuation of a text: an iterator over its chunks, none of them empty.

    The prompt is read after the tokenizer's separator, like every document in training; the continuation ends
    at one of its `stop_tokens`, at a stop text (neither is returned) or after `max_new_tokens`.

    Args:
        prompt: text to continue; may be empty.
        stop: texts that end the continuation.
        options: of `stream`: max_new_tokens, temperature, rng, top_k, top_p, prefill_chunk, chunk.

    Raises:
        ValueError: the tokenizer has more tokens than the model, or a wrong option.
    """

    def __init__(
        self,
        model: LanguageModel,
        params: Params,
        tokenizer: Tokenizer,
        prompt: str,
        *,
        stop: Sequence[str] = (),
        **options: Any,
    ) -> None:
        size = model.config.vocab_size
        expect(tokenizer.vocab_size <= size, "tokenizer.vocab_size", tokenizer.vocab_size, f"at most {size}")
        tokens = np.concatenate([np.array([text_start(tokenizer)], np.int32), tokenizer.encode(prompt)])
        self._decoder = StreamDecoder(tokenizer, tokens.tolist())
        self._stop, self._ends = StopTexts(stop), stop_tokens(tokenizer)
        self._chunks = stream(model, params, tokens[None], stop_tokens=self._ends, **options)
        self.tokens = 0
        """number of tokens made so far, a stop token included"""

    def __iter__(self) -> Iterator[str]:
        for chunk in self._chunks:
            text = ""
            for token in chunk[0].tolist():
                self.tokens += 1
                if token not in self._ends:
                    text += self._stop.feed(self._decoder.feed(token))
                if self._stop.found:
                    break
            if text:
                yield text
            if self._stop.found:
                return
        text = self._stop.feed(self._decoder.flush()) + self._stop.flush()
        if text:
            yield text
