"""How long a text can be: what a model's state has room for, and what its positions reach to."""

from typing import Any

import jax

from based_jax.generate.rows import row_bytes
from based_jax.models.language_model import LanguageModel, make_mixer


def token_limit(model: LanguageModel, max_length: int) -> int | None:
    """Tokens that a row of `model.init_state(B, max_length)` may read; None is any number.

    Learned positions end with their table. A layer whose state grows with `max_length` ends there, or where
    it grows no more: a long convolution has so many taps.
    """
    config = model.config
    limits = [config.max_positions] if config.max_positions else []
    for letter in sorted(set(config.schedule)):
        mixer = make_mixer(config, config.schedule.index(letter))
        own = getattr(mixer, "max_length", None)  # of cosformer, whose weights fit its longest text
        limits += [own] if own else []
        limits += _room(mixer, max_length)
    return min(limits, default=None)


def _room(mixer: Any, max_length: int) -> list[int]:
    """The limit by one layer's state, if there is one."""

    def size(length: int) -> int:
        return row_bytes(jax.eval_shape(lambda: mixer.init_state(1, length)))

    full, beyond = size(max_length), size(max_length + (1 << 16))
    if size(1) == beyond:
        return []
    if full < beyond:
        return [max_length]
    low, high = 1, max_length  # the first length with all the room is in (low, high]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if size(middle) == full else (middle, high)
    return [high]
