"""Convert the authors' torch modules: a fixture's meta and state dict to (module, params), and back.

`references.table` lists the known modules and how each is converted.
"""

from collections.abc import Mapping
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax.convert.layouts import Rules, Shapes, flatten, shapes_of, to_tensors, to_tree, torch_shapes
from based_jax.convert.older_names import with_norms_before
from based_jax.convert.references.mixers import Meta
from based_jax.convert.references.ops import TorchOp
from based_jax.convert.references.table import find
from based_jax.convert.state_dict import expect_keys, expect_weights
from based_jax.convert.tables import Names
from based_jax.models import LanguageModel
from based_jax.typing import Params


def from_torch(meta: Meta, state_dict: Mapping[str, Any]) -> tuple[nn.Module, Params]:
    """Convert one of the authors' modules to ours, with its parameters.

    Args:
        meta: of a reference fixture: its `module` (or `op`, a checkpoint's `kind` and `config`, a training
            trace's `model`) and hyperparameters.
        state_dict: torch parameters by key, as numpy arrays; empty for an op.

    Returns:
        An unbound Flax module and ``{"params": ...}`` in float32. An op's module takes the fixture's inputs
        in the fixture's layout and returns y, or (y, final state) where the op has a state.

    Raises:
        ValueError: an unknown module (the message lists the known ones) or option; tensors that are missing,
            unexpected, of a wrong shape or not weights (`expect_weights`), by name; an untied head.
    """
    reference = find(meta)
    shapes = {key: tuple(tensor.shape) for key, tensor in with_norms_before(state_dict).items()}
    module = reference.build(meta, shapes)
    if isinstance(module, TorchOp):
        expect_keys(shapes, {})
        return module, {"params": {}}
    if reference.names is not None:
        state_dict = with_norms_before(state_dict)
        if cast(LanguageModel, module).config.tie_embeddings:
            state_dict = drop_tied_head(state_dict, reference.names)
        inputs = jnp.zeros((1, 1), jnp.int32)
    else:
        inputs = jnp.zeros((1, 1, reference.width(meta, shapes)), jnp.float32)
    dropped = reference.dropped(meta)
    state_dict = {key: tensor for key, tensor in state_dict.items() if key not in dropped}
    expect_weights(state_dict)
    return module, to_params(reference.rules(meta), state_dict, shapes_of(module, inputs))


def to_torch(meta: Meta, params: Params) -> dict[str, Any]:
    """Convert our parameters, or their gradients, to a torch state dict; the inverse of `from_torch`.

    Tied heads, constants and aliases of shared tensors are omitted, as in the fixtures' gradients.

    Args:
        meta: as for `from_torch`.
        params: ``{"params": ...}``; boxes with logical axis names are removed.

    Raises:
        ValueError: an unknown module, or parameters of another module.
    """
    tree = nn.meta.unbox(params)["params"]
    return to_tensors(find(meta).rules(meta), flatten(tree))


def to_params(rules: Rules, tensors: dict[str, Any], ours: Shapes) -> Params:
    """Convert tensors to parameters of the given paths and shapes; the tensors must match the rules exactly.

    `tensors` is empty afterwards; see `to_tree`.
    """
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    expect_keys(found, torch_shapes(rules, ours))
    return {"params": to_tree(rules, tensors, ours)}


def drop_tied_head(tensors: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return the tensors without the head, which must be absent or equal to the embedding."""
    rest = dict(tensors)
    head = rest.pop(names.head, None)
    embedding = rest.get(names.embedding)
    if head is not None and embedding is not None and not np.array_equal(head, embedding):
        raise ValueError(f"{names.head} differs from {names.embedding}: expected a tied head, the same array")
    return rest
