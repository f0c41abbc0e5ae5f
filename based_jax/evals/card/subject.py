"""What a recall card describes: a checkpoint of this library, or a callable of any library.

A kind of mixer that is switched off returns zeros, so its layers pass on the residual stream (and their MLPs
run as before). This needs no parameter names, so it works for every registered mixer.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import mixers
from based_jax.convert.pretrained import find_directory, load_pretrained
from based_jax.evals.label_scores import LogitsFn
from based_jax.generate.states import state_bytes
from based_jax.models import LanguageModel, param_count
from based_jax.typing import Array, Params


def layers_of(model: LanguageModel) -> dict[str, list[int]]:
    """Return mixer -> indices of its layers, in the order of their first layers."""
    found: dict[str, list[int]] = {}
    for index in range(model.config.num_layers):
        found.setdefault(model.config.layer(index).mixer, []).append(index)
    return found


def without(model: LanguageModel, params: Params, mixer: str | None) -> LogitsFn:
    """Return the model as ``(tokens) -> logits``, with all layers of this mixer switched off.

    Args:
        mixer: registered name; None for the whole model.
    """
    plain, silenced = switched_off(model, mixer)

    @jax.jit
    def apply(params: Params, tokens: Array) -> Any:
        with silenced():
            return plain.apply(params, tokens)[0]

    return lambda tokens: apply(params, tokens)


def switched_off(
    model: LanguageModel, mixer: str | None
) -> tuple[LanguageModel, Callable[[], AbstractContextManager[Any]]]:
    """Return a model for the same parameters, and a context in which this mixer's layers return zeros.

    Functions compiled in the context keep it: do not share them with other models.
    """
    if mixer is None:
        return model, contextlib.nullcontext
    # In a scan over layers, or under rematerialisation, a layer's module has no index.
    plain = LanguageModel(model.config.replace(scan_layers=False, remat="none"))
    off = {(f"layers_{index}", "mixer") for index in layers_of(model).get(mixer, ())}

    def silence(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        output = call(*args, **kwargs)
        if context.method_name != "__call__" or context.module.path not in off:
            return output
        y, state = output
        return jax.tree.map(jnp.zeros_like, y), state

    return plain, lambda: nn.intercept_methods(silence)


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
    directory = find_directory(source)
    model, params = load_pretrained(directory)
    config, kinds = model.config, layers_of(model)
    longest = min(config.max_length, LENGTHS[-1])
    stateless = [kind for kind in kinds if not mixers.info(kind).stateful]
    return Subject(
        without(model, params, None),
        config.vocab_size,
        name_of(directory),
        sorted({max(longest // share // 2 * 2, 2) for share in (1, 2, 4)}),
        {
            "source": "checkpoint",
            "layers": [config.layer(index).mixer for index in range(config.num_layers)],
            "parameters": param_count(config),
        },
        f"{', '.join(stateless)} has no state" if stateless else functools.partial(state_bytes, model),
        {kind: (without(model, params, kind), layers) for kind, layers in kinds.items()},
    )


def name_of(directory: Path) -> str:
    """Return the name of a checkpoint, for a card."""
    path = directory.resolve()
    return path.parent.name if path.name == "model" else path.name
