"""Convert a module to two pure functions, for code without Flax."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
from flax import linen as nn

from based_jax.mixers.module import Module
from based_jax.models.sharding import Rules, specs_of
from based_jax.typing import Params
from based_jax.validate import expect


class Functional(NamedTuple):
    """The two functions that `functional` returns; unpacks as ``init, apply``."""

    init: Callable[..., Params]
    """(key, *example, **context) -> params"""
    apply: Callable[..., Any]
    """(params, *inputs, **context) -> the module's outputs, ``(y, state)`` for mixers and models"""


def functional(module: Module, *, rules: Rules | None = None) -> Functional:
    """Return a mixer or model as two pure functions, ``init`` and ``apply``.

    Parameters are nested dicts of float32 arrays, ``{"params": {...}}``: a pytree for any optimizer or
    transformation, accepted by `generate`, `save_pretrained` and `module.apply`.

    Args:
        module: a mixer, a language model or a classifier.
        rules: for meshes with axes of other names: ``[("vocab", "model"), ("heads", "model"), ...]``.

    Returns:
        init: draws parameters from a key and the arguments of one call, of which only shapes and dtypes
            matter; compiled. Within ``jax.set_mesh(mesh)`` they are created sharded by the library's rules
            (`based_jax.models.sharding`) or by `rules`.
        apply: `module.apply`. `module.init_state`, also a pure function, makes states.

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
        def draw(key: jax.Array) -> Params:
            return module.init(key, *example, **context)

        mesh = jax.sharding.get_abstract_mesh()
        placed = None
        if not mesh.empty:
            placed = specs_of(jax.eval_shape(draw, key), mesh, rules)

        def unboxed(key: jax.Array) -> Params:
            return nn.meta.unbox(draw(key))

        return cast(Params, jax.jit(unboxed, out_shardings=placed)(key))

    return Functional(init, module.apply)
