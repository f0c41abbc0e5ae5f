"""Store weights as decoding reads them: in the dtype that it computes in, and on a GPU by results.

A decoding step reads all weights to make one token per row, so reading them bounds its speed. Modules keep
float32 parameters and cast them at each use. Parameters that every use casts are cast here, once; the others,
which modules need in float32 (scales of norms, decays, step sizes), stay. So the model computes the same
values, bit for bit. The parameters to cast are found from the program of a step (`jax.make_jaxpr`): those
whose every use is a cast.

Kernels that multiply a single row read a matrix (K, V) by its results, all K numbers of one after the other.
It keeps its shape, and its memory has this order.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.core import Tracer
from jax.experimental.layout import Format, Layout
from jax.extend.core import Jaxpr, Literal

from based_jax.mixers.initializers import initial_shapes
from based_jax.models.language_model import LanguageModel, blank_inputs
from based_jax.typing import Array, Params, State
from based_jax.validate import expect_choice

_MOVES = ("broadcast_in_dim", "copy", "gather", "reshape", "rev", "slice", "squeeze", "transpose")
"""operations that only move values: rounding commutes with them"""

_CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
"""operations that run a program on the same arguments"""

_LENGTHS = (1, 8)  # steps, prompt chunks and whole texts may use parameters differently


def decoding_weights(
    model: LanguageModel, params: Params, dtype: Any = jnp.bfloat16
) -> tuple[LanguageModel, Params]:
    """Return a model that computes in `dtype`, and parameters that it need not cast again.

    States keep their dtypes: running sums are float32, cached activations have `dtype`. Matrices on a single
    GPU are stored `by_results`.

    Args:
        params: its float32 variables.
        dtype: bfloat16, float16 or float32.

    Returns:
        The model with this dtype, and its parameters, for `generate`, `Engine` or `model.apply`. Their
        outputs are the same as that model's with `params`.

    Raises:
        ValueError: another dtype.
    """
    name = dtype if isinstance(dtype, str) else jnp.dtype(dtype).name
    expect_choice("dtype", name, ("bfloat16", "float16", "float32"))
    model = LanguageModel(model.config.replace(dtype=name))
    leaves, tree = jax.tree.flatten(params)
    state = jax.eval_shape(lambda: model.init_state(1, max(_LENGTHS)))
    calls = [*((length, state) for length in _LENGTHS), (max(_LENGTHS), None)]
    kept = {index for length, state in calls for index in _kept(model, leaves, tree, length, state)}
    cast = [leaf if index in kept else jnp.asarray(leaf, dtype) for index, leaf in enumerate(leaves)]
    found = jax.tree.unflatten(tree, cast)
    is_on_gpu = all(_is_on_gpu(leaf) for leaf in cast)
    return model, by_results(model, found) if is_on_gpu and jax.device_count() == 1 else found


def by_results(model: LanguageModel, params: Params) -> Params:
    """Return the same parameters, with the memory of the matrices of linear maps in the order of results.

    Otherwise XLA makes a transposed copy of them whenever it begins to make tokens for a single text.
    """
    boxed = initial_shapes(model.init, jax.random.key(0), blank_inputs(model.config))
    axes = {
        path: getattr(box, "names", ()) for path, box in jax.tree.leaves_with_path(boxed, is_leaf=_is_named)
    }

    def stored(path: Any, leaf: Array) -> Array:
        names: tuple[str | None, ...] = axes.get(path, ()) if str(path[-1]) == "['kernel']" else ()
        is_from_embed, is_to_embed = names[:1] == ("embed",), names[-1:] == ("embed",)
        if not (is_from_embed or is_to_embed):
            return leaf
        *lead, last = range(leaf.ndim)
        order = (*lead[1:], last, 0) if is_from_embed else (last, *lead)
        return jax.device_put(leaf, Format(Layout(order), leaf.sharding))

    return jax.tree.map_with_path(stored, params)


def _is_named(x: Any) -> bool:
    return isinstance(x, nn.LogicallyPartitioned)


def _is_on_gpu(leaf: Any) -> bool:
    is_array = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)
    return is_array and {device.platform for device in leaf.devices()} == {"gpu"}


def _kept(model: LanguageModel, leaves: list[Array], tree: Any, length: int, state: State | None) -> set[int]:
    """Return the indices of the parameters that a call with `length` tokens uses in their own dtype."""

    def program(leaves: list[Array], tokens: Array, state: State | None) -> Any:
        return model.apply(jax.tree.unflatten(tree, leaves), tokens, state)

    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    jaxpr = jax.make_jaxpr(program)(leaves, tokens, state).jaxpr
    inputs = {var: index for index, var in enumerate(jaxpr.invars[: len(leaves)])}
    kept, returned = _follow(jaxpr, inputs, model.config.jnp_dtype)
    return kept | {index for index in returned if index is not None}


def _follow(jaxpr: Jaxpr, origin: dict[Any, int], dtype: Any) -> tuple[set[int], list[int | None]]:
    """Follow parameters through a program.

    Args:
        origin: the program's variables that hold a parameter, and the parameter's index.

    Returns:
        the parameters with a use other than a cast to `dtype`; for every output the parameter that it holds,
        if any.
    """
    origin, kept = dict(origin), set()

    def held(variables: Iterable[Any]) -> list[int | None]:
        return [None if isinstance(var, Literal) else origin.get(var) for var in variables]

    for eqn in jaxpr.eqns:
        sources, name = held(eqn.invars), eqn.primitive.name
        used = {index for index in sources if index is not None}
        if not used or (name == "convert_element_type" and eqn.params["new_dtype"] == dtype):
            continue
        outputs: list[int | None] = []
        if name in _CALLS:
            inner = next(p for p in map(_program, eqn.params.values()) if p is not None)
            arguments = zip(inner.invars, sources, strict=True)
            more, outputs = _follow(inner, {var: i for var, i in arguments if i is not None}, dtype)
            kept |= more
        elif name in _MOVES:
            outputs = sources[:1]  # the others are indices
        elif name == "select_n" and len(used) == 1:  # between a parameter and NaN, say
            outputs = [*used]
        else:
            kept |= used
        origin |= {var: i for var, i in zip(eqn.outvars, outputs, strict=False) if i is not None}
    return kept, held(jaxpr.outvars)


def _program(value: Any) -> Jaxpr | None:
    inner = getattr(value, "jaxpr", value)
    return inner if isinstance(inner, Jaxpr) else None
