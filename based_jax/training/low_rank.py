"""Fine-tune low-rank updates of a model's weight matrices (LoRA, Hu et al., 2021, section 4.1).

    W = W_0 + 2 A B             A: (in, r), B: (r, out), B = 0 at the start

`LowRank` takes the place of the model in a training step. The optimizer sees only A and B, and the parameters
that are trained as well. The merged model has the same architecture as the original.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.traverse_util import unflatten_dict
from jax import lax

from based_jax.convert.layouts import flatten
from based_jax.models import LanguageModel, ModelConfig
from based_jax.training.optimizer import is_matrix, kind_of, names_of
from based_jax.typing import Array, Params
from based_jax.validate import expect

CHANGES = "low_rank"
"""Flax collection of A and B, next to "params"."""

SCALE = 2.0
"""alpha / r: alpha grows with the rank."""


@dataclasses.dataclass(frozen=True)
class LowRank:
    """A language model with low-rank updates of rank `rank` to its blocks' weight matrices.

    Variables are ``{"params": ..., "low_rank": {path: {"a": (in, r), "b": (r, out)}}}``, a pair for each
    matrix of the blocks whose rank is larger. A weight with more than two axes is reshaped to the matrix that
    is closest to a square.
    """

    model: LanguageModel
    rank: int
    also: tuple[str, ...] = ()
    """kinds of parameters that are trained as well: "embeddings", "norms" (see `kind_of`)"""

    @property
    def config(self) -> ModelConfig:
        """Return the configuration of the model."""
        return self.model.config

    def init(self, key: Array, tokens: Array) -> Params:
        """Return the variables for tokens (B, N), with A drawn from a normal of variance 1 / in, and B = 0.

        Raises:
            ValueError: no weight matrix has a larger rank.
        """
        variables = self.model.init(key, tokens)
        changes = {}
        leaves = flatten(nn.meta.unbox(variables["params"]))
        maps = [path for path in leaves if is_matrix(path.split("/"))]
        for number, path in enumerate(sorted(maps)):
            leaf = leaves[path]
            rows, columns = _matrix(leaf.shape)
            if min(rows, columns) <= self.rank:
                continue
            noise = jax.random.normal(jax.random.fold_in(key, number), (rows, self.rank), leaf.dtype)
            changes[path] = {"a": noise / math.sqrt(rows), "b": jnp.zeros((self.rank, columns), leaf.dtype)}
        expect(bool(changes), "lora", self.rank, "below the rank of at least one map of the blocks")
        return {**variables, CHANGES: changes}

    def merged(self, params: Params) -> Params:
        """Return the model's variables with the updates added; what is not trained has no gradients."""
        kept = {
            path: leaf if kind_of(path.split("/")) in self.also else lax.stop_gradient(leaf)
            for path, leaf in flatten(params["params"]).items()
        }
        for path, change in params[CHANGES].items():
            kept[path] = kept[path] + SCALE * (change["a"] @ change["b"]).reshape(kept[path].shape)
        return {"params": unflatten_dict(kept, sep="/")}

    def apply(self, params: Params, *arguments: Any, **options: Any) -> Any:
        """Call `LanguageModel.apply` with the merged variables."""
        return self.model.apply(self.merged(params), *arguments, **options)

    def output_embedding(self, params: Params) -> Array:
        """Return the output embedding of the merged model, (vocab, D)."""
        return self.model.output_embedding(self.merged(params))

    def train_only(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """Restrict `optimizer` to what is trained; the frozen weights have no gradients and no moments."""

        def mask(params: Params) -> Any:
            is_trained = jax.tree_util.tree_map_with_path(
                lambda path, _: kind_of(names_of(path)) in self.also, params["params"]
            )
            return {"params": is_trained if self.also else False, CHANGES: True}

        return optax.masked(optimizer, mask)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    cuts = range(1, len(shape))
    return min(((math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in cuts), key=sum)
