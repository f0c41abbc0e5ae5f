"""Wrap a mixer or model as an `nnx.Module` with `nnx.Param`s under the library's parameter names.

The Linen module contains no arrays, so `nnx.split` puts it into the graph definition. Decoding states are
still passed in and returned; nothing is stored between two calls.
"""

from collections.abc import Mapping
from typing import Any

import jax
from flax import linen as nn
from flax import nnx

from based_jax.mixers.module import Module
from based_jax.models.functional import drawn, expect_module
from based_jax.models.sharding import Rules
from based_jax.typing import Params, State
from based_jax.validate import expect


class Wrapped(nnx.Module):
    """A mixer or model as an `nnx.Module`; see `wrap`.

    Attributes:
        module: the mixer or model, without parameters.
        params: nested dicts of `nnx.Param`. Their `out_sharding` has the axes of the mesh in force when they
            were made, or logical axis names where there was none.
    """

    def __init__(self, module: Module, params: Mapping[str, Any]) -> None:
        self.module = module
        self.params: Any = nnx.data(params)

    def __call__(
        self,
        *inputs: Any,
        rngs: nnx.Rngs | Mapping[str, jax.Array] | None = None,
        method: str | None = None,
        mutable: Any = False,
        **context: Any,
    ) -> Any:
        """Call the module: ``(y, state)`` for mixers, ``(logits, state)`` for models.

        Args:
            inputs: the module's inputs, including the state to continue from.
            rngs: streams of the noise in training, e.g. ``nnx.Rngs(dropout=0)``; without them no noise. The
                default stream of ``nnx.Rngs(0)`` is that of dropout.
            method: a method of the module other than `__call__`, such as "hidden" of a model.
            mutable: collections to return with the result, see `nn.Module.apply`.
            context: further arguments: segment_ids, positions, mask, ...
        """
        if isinstance(rngs, nnx.Rngs):
            rngs = {name: stream() for name, stream in rngs.items()}
            if "default" in rngs:  # the stream of every name that has none
                rngs = {"dropout": rngs.pop("default"), **rngs}
        return self.module.apply(
            self.variables, *inputs, rngs=rngs, method=method, mutable=mutable, **context
        )

    @property
    def variables(self) -> Params:
        """Return the parameters as ``{"params": {...}}``, as `generate` and `save_pretrained` take them."""
        return {"params": nnx.to_pure_dict(nnx.state(self, nnx.Param))["params"]}

    def set_variables(self, variables: Params) -> None:
        """Replace the parameters by those of the same tree, for example from `load_pretrained`.

        Raises:
            ValueError: missing or unknown parameters, or wrong shapes.
        """
        ours, theirs = self.variables, nn.meta.unbox(dict(variables))
        shapes = [
            {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(tree)}
            for tree in (ours, theirs)
        ]
        wrong = sorted(key for key in shapes[0] | shapes[1] if shapes[0].get(key) != shapes[1].get(key))
        expected = "this module's; these are missing, unexpected or of a wrong shape"
        expect(not wrong, "variables", wrong[:10], expected)
        nnx.update(self, nnx.State(theirs))

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        """Return the state before the first token; see `init_state` of the module."""
        return self.module.init_state(batch_size, max_length, dtype)


def wrap(
    module: Module, rngs: nnx.Rngs | jax.Array, *example: Any, rules: Rules | None = None, **context: Any
) -> Wrapped:
    """Wrap a mixer or model as an `nnx.Module` and initialise its parameters.

    Within ``jax.set_mesh(mesh)`` the parameters are created sharded by the library's rules
    (`based_jax.models.sharding`) or by `rules`, and replicated over mesh axes that the rules do not name.

    Args:
        module: a mixer, a language model or a classifier.
        rngs: for the initial values: its stream "params", or a key.
        example: arguments of one call, such as tokens (B, N); only shapes and dtypes matter.
        rules: for meshes with axes of other names: ``[("vocab", "model"), ("heads", "model"), ...]``.
        context: further arguments of that call.

    Raises:
        TypeError: not a module of this library, or no arguments of a call.

    Examples:
        >>> import jax.numpy as jnp, based_jax as bj
        >>> from flax import nnx
        >>> layer = bj.nnx.wrap(bj.mixers.make("gla", d_model=64), nnx.Rngs(0), jnp.ones((1, 8, 64)))
        >>> y, _ = layer(jnp.ones((2, 16, 64)))
    """
    expect_module(module)
    if not (example or context):
        expected = "the arguments of one call, such as jnp.ones((1, 8, d_model)) or tokens (1, 8)"
        raise TypeError(f"example = (): expected {expected}")
    key = rngs.params() if isinstance(rngs, nnx.Rngs) else rngs

    def init(key: jax.Array) -> Any:
        return module.init(key, *example, **context)["params"]

    arrays, boxed, placed = drawn(init, key, rules)
    mesh = jax.sharding.get_abstract_mesh()
    # On a mesh Flax shards the variables and, because of that, the moments that an optimizer makes of them
    # within `nnx.jit`. It raises where there is no mesh, and on a mesh with axes of several types.
    eager = None if placed is not None and len(set(mesh.axis_types)) == 1 else False

    def variable(box: Any, array: jax.Array, spec: Any = None) -> nnx.Param:
        axes = getattr(box, "names", None) if spec is None else tuple(spec)
        names: dict[str, Any] = {} if axes is None else {"out_sharding": axes}
        return nnx.Param(array, eager_sharding=eager, **names)

    is_box = lambda leaf: isinstance(leaf, nn.meta.AxisMetadata)  # noqa: E731
    trees = (boxed, arrays) if placed is None else (boxed, arrays, placed)
    return Wrapped(module, jax.tree.map(variable, *trees, is_leaf=is_box))
