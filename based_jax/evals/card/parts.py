"""Switch off one kind of mixer of a language model, to find out whether its recall depends on it.

A mixer that is switched off returns zeros, so its layers pass on the residual stream (and their MLPs run as
before). This needs no parameter names, so it works for every registered mixer.
"""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax.evals.label_scores import LogitsFn
from based_jax.models import LanguageModel
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

    def apply(tokens: Array) -> Array:
        with silenced():
            logits: Any = plain.apply(params, tokens)[0]
        return logits

    return apply


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
