"""Convert a module to two pure functions, for code without Flax."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
from flax import linen as nn

from based_jax.mixers.initializers import initial_shapes
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
    expect_module(module)
    expected = "a mixer or model of based_jax that is not bound to variables"
    expect(module.scope is None, "module", type(module).__name__, expected)

    def init(key: jax.Array, *example: Any, **context: Any) -> Params:
        return drawn(lambda key: module.init(key, *example, **context), key, rules)[0]

    return Functional(init, module.apply)


def expect_module(module: Any) -> None:
    """Check that a module is one of this library."""
    if not isinstance(module, Module):
        raise TypeError(f"module = {type(module).__name__}: expected a mixer or model of based_jax")


def drawn(init: Callable[[jax.Array], Any], key: jax.Array, rules: Rules | None) -> tuple[Any, Any, Any]:
    """Compile and run `init`; return its arrays, the boxes of their axis names, and their specs on a mesh."""
    boxed = initial_shapes(init, key)
    # Not `get_mesh`, which raises within `nnx.eval_shape`, `nnx.jit` and `nnx.vmap` of a constructor.
    mesh = jax.sharding.get_abstract_mesh()
    specs = None if mesh.empty else specs_of(boxed, mesh, rules)

    def unboxed(key: jax.Array) -> Any:
        return nn.meta.unbox(init(key))

    return cast(Any, jax.jit(unboxed, out_shardings=specs))(key), boxed, specs
