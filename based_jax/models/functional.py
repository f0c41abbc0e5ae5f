"""A module as two pure functions, for code without Flax."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import linen as nn

from based_jax.mixers.module import Module
from based_jax.typing import Params
from based_jax.validate import expect


class Functional(NamedTuple):
    """What `functional` returns; unpacks as ``init, apply``."""

    init: Callable[..., Params]
    """(key, *example, **context) -> params"""
    apply: Callable[..., Any]
    """(params, *inputs, **context) -> what the module returns, ``(y, state)`` for mixers and models"""


def functional(module: Module) -> Functional:
    """Return a mixer or model as two pure functions, ``init`` and ``apply``.

    Parameters are nested dicts of float32 arrays, ``{"params": {...}}``: a pytree for any optimizer or
    transformation, and what `generate`, `save_pretrained` and `module.apply` take.

    Args:
        module: a mixer, a language model or a classifier.

    Returns:
        init: draws parameters from a key and the arguments of one call, of which only shapes and dtypes
            matter; it is compiled.
        apply: `module.apply`. States are made by `module.init_state`, which is a pure function too.

    Raises:
        TypeError: not a module of this library.

    Examples:
        >>> import jax, jax.numpy as jnp, based_jax as bj
        >>> init, apply = bj.functional(bj.mixers.make("linear_attention", d_model=32))
        >>> x = jnp.ones((1, 8, 32))
        >>> y, _ = apply(init(jax.random.key(0), x), x)
    """
    name, expected = type(module).__name__, "a mixer or model of based_jax"
    if not isinstance(module, Module):
        raise TypeError(f"module = {name}: expected {expected}")
    expect(module.scope is None, "module", name, f"{expected} that is not bound to variables")

    def init(key: jax.Array, *example: Any, **context: Any) -> Params:
        return nn.meta.unbox(jax.jit(module.init)(key, *example, **context))

    return Functional(init, module.apply)
