"""What a recall card describes: a checkpoint of this library, or a callable of any library."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from based_jax import mixers
from based_jax.convert.pretrained import find_directory, load_pretrained
from based_jax.evals.card.parts import layers_of, without
from based_jax.evals.label_scores import LogitsFn
from based_jax.generate.rows import row_bytes
from based_jax.models import LanguageModel, param_count

LENGTHS = (64, 128, 256)
"""Default lengths of a callable; for a checkpoint the largest is the limit."""

StateBytes = Callable[[int], int]
"""Length -> bytes of the state of one sequence."""


class Subject(NamedTuple):
    """A model, and what is known about it."""

    apply_fn: LogitsFn
    vocab_size: int
    name: str
    lengths: Sequence[int]
    """default lengths"""
    facts: Mapping[str, Any]
    state_bytes: StateBytes | str
    """or the reason why its state is unknown"""
    parts: Mapping[str, tuple[LogitsFn, Sequence[int] | None]]
    """name of a part -> the model without it, and the indices of the part's layers"""


def of_checkpoint(source: str | os.PathLike[str]) -> Subject:
    """Open a checkpoint by `load_pretrained`; its parts are its kinds of mixers."""
    model, params = load_pretrained(source)
    config, kinds = model.config, layers_of(model)
    longest = min(config.max_length, LENGTHS[-1])
    return Subject(
        without(model, params, None),
        config.vocab_size,
        name_of(find_directory(source)),
        sorted({max(longest // share // 2 * 2, 2) for share in (1, 2, 4)}),
        {
            "source": "checkpoint",
            "layers": [config.layer(index).mixer for index in range(config.num_layers)],
            "parameters": param_count(config),
        },
        _state_bytes(model),
        {kind: (without(model, params, kind), layers) for kind, layers in kinds.items()},
    )


def of_callable(
    apply_fn: LogitsFn,
    vocab_size: int,
    state_bytes: StateBytes | None = None,
    parts: Mapping[str, LogitsFn] | None = None,
) -> Subject:
    """Describe a callable, with what its user knows about it."""
    state = state_bytes or "a callable does not report its state; pass state_bytes="
    off = {part: (function, None) for part, function in (parts or {}).items()}
    return Subject(apply_fn, vocab_size, "model", LENGTHS, {"source": "callable"}, state, off)


def name_of(directory: Path) -> str:
    """Return the name of a checkpoint, for a card."""
    path = directory.resolve()
    return path.parent.name if path.name == "model" else path.name


def _state_bytes(model: LanguageModel) -> StateBytes | str:
    stateless = [mixer for mixer in layers_of(model) if not mixers.info(mixer).stateful]
    if stateless:
        return f"{', '.join(stateless)} has no state"
    return lambda length: row_bytes(jax.eval_shape(lambda: model.init_state(1, length)))
