"""The decoder-only language model: embedding, blocks, final norm, head.

It keeps the mixers' contract one floor up: `logits, state = model.apply(params, tokens, state)` is training
(state None), prefill, chunked prefill and decoding.
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import mixers, ops
from based_jax.mixers.context import find_stream
from based_jax.mixers.contract import Mixer, named
from based_jax.mixers.module import Module
from based_jax.models.block import Block
from based_jax.models.config import ModelConfig
from based_jax.models.mlp import make_mlp
from based_jax.models.norm import make_norm
from based_jax.models.scan import find_repeats, run_repeats
from based_jax.ops.core.context_parallel import keep_tokens
from based_jax.typing import Array, Float, Int, Mask, Params, Positions, SegmentIds, State
from based_jax.validate import expect, expect_array


class LanguageModel(Module):
    """A language model described by a `ModelConfig`.

    Example:
        >>> import jax, jax.numpy as jnp, based_jax as bj
        >>> model = bj.LanguageModel(bj.presets.get("based-tiny"))
        >>> tokens = jnp.zeros((1, 8), jnp.int32)
        >>> params = model.init(jax.random.key(0), tokens)
        >>> logits, _ = model.apply(params, tokens)
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config

        def table(name: str, rows: int, axis: str | None) -> Array:
            init = named(nn.initializers.normal(config.init_std), axis, "embed")
            return self.param(name, init, (rows, config.d_model))

        self.embedding = table("embedding", config.padded_vocab_size, "vocab")
        if not config.tie_embeddings:
            self.head = table("head", config.padded_vocab_size, "vocab")
        if config.max_positions:
            self.position_embedding = table("position_embedding", config.max_positions, None)
        block = rematerialised(config.remat)
        mlp: dict[str, Any] = {"d_model": config.d_model, "hidden": config.mlp_hidden}
        mlp |= {"activation": config.mlp_activation, "bias": config.mlp_bias, "dtype": config.jnp_dtype}
        mlp |= {"init_std": config.init_std, "out_init_std": config.residual_init_std}
        norm: dict[str, Any] = {"norm": config.norm, "norm_eps": config.norm_eps, "dtype": config.jnp_dtype}
        self.layers = [
            block(mixer=make_mixer(config, index), mlp=make_mlp(config.mlp, **mlp), **norm)
            for index in range(config.num_layers)
        ]
        for index, layer in enumerate(self.layers):
            expected = f"False with {config.layer(index).mixer}, which draws noise or has a loss of its own"
            expect(layer.mixer.is_pure or not config.scan_layers, "scan_layers", True, expected)
        self.final_norm = make_norm(config.final_norm or config.norm, config.norm_eps, config.jnp_dtype)
        self.dropout = nn.Dropout(config.embed_dropout)

    def __call__(
        self,
        tokens: Int[Array, "B N"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N vocab"], State | None]:
        """Next-token logits.

        Args:
            tokens: integers below the vocabulary size.
            state: None for a plain parallel pass; else continue from it.
            segment_ids: documents packed into one row do not see each other.
            positions: for rotary and learned embeddings; default: counted from the start of each segment.
            mask: True for real tokens, right padding only.

        Returns:
            logits: (B, N, padded vocabulary) float32. The padded entries are trained away from; mask them
                before sampling (`generate` does). Out-of-range tokens and learned positions give NaN.
            state: after the last real token; None if `state` was None.

        Raises:
            TypeError, ValueError: an argument of the wrong shape or dtype.
        """
        hidden, state = self.hidden(tokens, state, segment_ids=segment_ids, positions=positions, mask=mask)
        return self.unembed(hidden), state

    def hidden(
        self,
        tokens: Int[Array, "B N"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        """The final norm's output, for callers that need logits at few positions only; see `unembed`.

        With `rngs={"dropout": key}` given to `apply`, the config's `embed_dropout` is in force.
        """
        expect_array("tokens", tokens, ("B", "N"), "integer")
        expected = f"None or the {self.config.num_layers} layers' states from init_state"
        is_known = state is None or len(state) == self.config.num_layers
        expect(is_known, "state", type(state).__name__, expected)
        if positions is not None:
            expect_array("positions", positions, (None, tokens.shape[1]), "integer")
        dtype = self.config.jnp_dtype
        h = _rows(self.embedding, tokens, self.config.vocab_size)
        if self.config.max_positions:
            index = positions
            if index is None:
                stream = None if state is None else find_stream(state[0])
                index = ops.advance(stream, len(tokens), tokens.shape[1], segment_ids, mask)[0].positions
            # Padding may lie beyond the table, and its NaN would reach every token.
            index = index if mask is None else jnp.where(mask, index, 0)
            h += _rows(self.position_embedding, index, len(self.position_embedding))
        is_training = self.has_rng("dropout")
        h = keep_tokens(cast(Array, self.dropout(h.astype(dtype), deterministic=not is_training)))
        residual: Any = None
        states: list[State] = []
        context: dict[str, Any] = {"segment_ids": segment_ids, "positions": positions, "mask": mask}
        context["tokens"] = tokens
        loop, period = range(0), 1
        if self.config.scan_layers and state is None and not self.is_initializing():
            loop, period = find_repeats(self.config.schedule)
        for number, layer in enumerate(self.layers):
            if number in loop:
                if number == loop.start:
                    blocks = self.layers[loop.start : loop.stop]
                    h, residual = run_repeats(blocks, period, h, residual, **context)
                continue
            layer_state = None if state is None else state[number]
            h, residual, layer_state = layer(h, residual, layer_state, **context)
            states.append(layer_state)
        h = self.final_norm(residual + h.astype(residual.dtype))
        return h, None if state is None else tuple(states)

    def unembed(self, hidden: Float[Array, "... D"]) -> Float[Array, "... vocab"]:
        """Logits of hidden vectors, accumulated in float32 (float64 for a float64 model)."""
        head = self.embedding if self.config.tie_embeddings else self.head
        dtype = self.config.jnp_dtype
        wide = jnp.promote_types(dtype, jnp.float32)
        return jnp.einsum(
            "...d,vd->...v", hidden.astype(dtype), head.astype(dtype), preferred_element_type=wide
        )

    @nn.nowrap
    def output_embedding(self, params: Params) -> Float[Array, "vocab D"]:
        """The rows that `unembed` multiplies with, of ``{"params": ...}``; for `ops.cross_entropy`."""
        return nn.meta.unbox(params["params"]["embedding" if self.config.tie_embeddings else "head"])

    @nn.nowrap
    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        """The state before the first token: one entry per layer; needs no parameters.

        Args:
            batch_size: rows.
            max_length: tokens that a row will ever have; needed by full attention only.
            dtype: of cached activations; default the model's. Running sums are float32 regardless.

        Raises:
            ValueError: max_length missing or not positive where a layer needs it.
        """
        expect(batch_size >= 1, "batch_size", batch_size, "at least 1")
        mixers = map(functools.partial(make_mixer, self.config), range(self.config.num_layers))
        return tuple(mixer.init_state(batch_size, max_length, dtype) for mixer in mixers)

    @nn.nowrap
    def state_size(self, length: int) -> int:
        """Floats kept per sequence after `length` tokens, by the papers' formulas."""
        config = self.config
        return sum(make_mixer(config, index).state_size(length) for index in range(config.num_layers))


def rematerialised(remat: str) -> type[Block]:
    """The block whose backward pass recomputes what `ModelConfig.remat` says."""
    if remat == "none":
        return Block
    # Save the products of activations with weights (no batch axes): they are the expensive ones to recompute.
    # Scores and states, which have batch axes, are the large ones to keep.
    policies = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "block": None}
    return nn.remat(Block, policy=policies[remat])


def make_mixer(config: ModelConfig, index: int) -> Mixer:
    """The unbound mixer of layer `index`, initialised as the config says.

    Mixers whose initial values depend on their depth (RWKV) are indexed among layers of the same type.
    """
    spec = config.layer(index)
    options: dict[str, Any] = {"dtype": config.jnp_dtype, "init_std": config.init_std}
    options |= {"out_init_std": config.residual_init_std}
    if "layer" in mixers.info(spec.mixer).options:
        alike = [i for i in range(config.num_layers) if config.layer(i).mixer == spec.mixer]
        options |= {"layer": alike.index(index), "num_layers": len(alike)}
    return mixers.make(spec.mixer, d_model=config.d_model, **{**options, **spec.options})


def _rows(table: Float[Array, "rows D"], index: Int[Array, "..."], count: int) -> Float[Array, "... D"]:
    """The rows with these numbers, NaN outside [0, count); `jnp.take` alone would wrap negative ones."""
    index = jnp.where((index >= 0) & (index < count), index, len(table))
    return jnp.take(table, index, axis=0, mode="fill", fill_value=jnp.nan)


@functools.lru_cache(maxsize=64)
def param_shapes(config: ModelConfig) -> Mapping[str, Any]:
    """What ``init`` returns below "params", as shapes and dtypes: one layer of each kind is traced."""
    kinds = sorted(set(config.schedule))
    model = LanguageModel(config.replace(schedule="".join(kinds)))
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = dict(nn.meta.unbox(jax.eval_shape(model.init, jax.random.key(0), token))["params"])
    layers = {kind: shapes.pop(f"layers_{index}") for index, kind in enumerate(kinds)}
    return MappingProxyType(shapes | {f"layers_{i}": layers[kind] for i, kind in enumerate(config.schedule)})


def param_count(config: ModelConfig) -> int:
    """Number of parameters; a tied embedding counts once."""
    return sum(leaf.size for leaf in jax.tree.leaves(dict(param_shapes(config))))
