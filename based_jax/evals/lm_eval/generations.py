"""Continue prompts in batches up to a stop text, with lm-eval's generation settings."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tokenizers import Tokenizer, decode_after, stop_tokens
from based_jax.generate import Sampler, stream
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Params
from based_jax.validate import expect

MAX_TOKENS = 256
"""Default limit of a continuation, as in lm-eval."""

_MAX_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = ("top_k", "top_p", "min_p", "repetition_penalty")
_NAMES = ("until", "do_sample", "temperature", *_SAMPLING, *_MAX_TOKENS_NAMES)
_CHUNK = 16  # tokens between checks for stop texts


class Settings(NamedTuple):
    """Generation settings of a request."""

    until: tuple[str, ...]
    """texts that end the continuation, without being part of it"""
    max_tokens: int
    sampler: Sampler

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "Settings":
        """Parse a task's `generation_kwargs`.

        Without `do_sample` a temperature above 0 samples; with `do_sample: true` the temperature defaults to
        1; with `do_sample: false` it is ignored.
        """
        unknown = sorted(set(options) - set(_NAMES))
        expect(not unknown, "generation_kwargs", unknown, f"only {', '.join(_NAMES)}")
        until = options.get("until") or ()
        until = (until,) if isinstance(until, str) else tuple(until)
        for text in until:
            expect(isinstance(text, str), "until", text, "texts")
        sample = options.get("do_sample")
        temperature = options.get("temperature")
        if sample is False:
            temperature = 0.0
        elif temperature is None:
            temperature = 1.0 if sample else 0.0
        counts = [options[name] for name in _MAX_TOKENS_NAMES if options.get(name) is not None]
        max_tokens = counts[0] if counts else MAX_TOKENS
        good = isinstance(max_tokens, int) and max_tokens >= 1
        expect(good, "max_gen_toks", max_tokens, "an integer, at least 1")
        given = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
        sampler = Sampler(temperature, **given)
        return cls(tuple(filter(None, until)), max_tokens, sampler)

    def cut(self, text: str) -> str:
        """Return the text before the first stop text."""
        return text[: min((text.find(stop) for stop in self.until if stop in text), default=len(text))]


def continue_texts(
    model: LanguageModel,
    params: Params,
    tokenizer: Tokenizer,
    prompts: Sequence[np.ndarray],
    settings: Settings,
    rng: Any = None,
) -> list[str]:
    """Continue prompts until a stop text, a stop token, or `settings.max_tokens`.

    Args:
        prompts: rows of tokens, none empty; no row sees padding.
        rng: one key per row, if the settings sample.
    """
    tokens, stops = np.zeros((len(prompts), 0), np.int32), stop_tokens(tokenizer)
    ends: dict[str, Any] = {"stop_tokens": stops, "pad_token": -1, "chunk": _CHUNK, "rng": rng}
    sampling = dataclasses.asdict(settings.sampler)
    texts = [""] * len(prompts)
    for chunk in stream(model, params, prompts, settings.max_tokens, **sampling, **ends):
        tokens = np.concatenate([tokens, chunk], axis=1)
        made = (row[(row >= 0) & ~np.isin(row, stops)] for row in tokens)
        texts = [decode_after(tokenizer, *pair) for pair in zip(prompts, made, strict=True)]
        if all(settings.cut(text) != text for text in texts):
            break
    return [settings.cut(text) for text in texts]


def keys_for(seed: int, numbers: Sequence[int]) -> Any:
    """Return one key per index, so that a request is sampled alike in any batch."""
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.asarray(numbers))
