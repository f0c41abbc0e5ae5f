"""The decoder-only language model: embedding, blocks, final norm, head.

It keeps the mixers' contract one floor up: `logits, state = model.apply(params, tokens, state)` is training
(state None), prefill, chunked prefill and decoding.
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import mixers, ops
from based_jax.mixers.contract import Mixer, named
from based_jax.mixers.module import Module
from based_jax.models.block import Block
from based_jax.models.config import ModelConfig
from based_jax.models.mlp import make_mlp
from based_jax.models.norm import make_norm
from based_jax.models.scan import find_repeats, run_repeats
from based_jax.ops.context_parallel import keep_tokens
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
        self.embedding = self.param(
            "embedding",
            named(nn.initializers.normal(config.init_std), "vocab", "embed"),
            (config.padded_vocab_size, config.d_model),
        )
        if not config.tie_embeddings:
            self.head = self.param(
                "head",
                named(nn.initializers.normal(config.init_std), "vocab", "embed"),
                (config.padded_vocab_size, config.d_model),
            )
        if config.max_positions:
            self.position_embedding = self.param(
                "position_embedding",
                named(nn.initializers.normal(config.init_std), None, "embed"),
                (config.max_positions, config.d_model),
            )
        block = rematerialised(config.remat)
        self.layers = [
            block(
                mixer=make_mixer(config, index),
                mlp=make_mlp(
                    config.mlp,
                    d_model=config.d_model,
                    hidden=config.mlp_hidden,
                    activation=config.mlp_activation,
                    bias=config.mlp_bias,
                    dtype=config.jnp_dtype,
                    init_std=config.init_std,
                    out_init_std=config.residual_init_std,
                ),
                norm=config.norm,
                norm_eps=config.norm_eps,
                dtype=config.jnp_dtype,
            )
            for index in range(config.num_layers)
        ]
        for index, layer in enumerate(self.layers):
            expect(
                layer.mixer.is_pure or not config.scan_layers, "scan_layers", True,
                f"False with {config.layer(index).mixer}, which draws noise or has a loss of its own",
            )  # fmt: skip
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
            state: behind the last real token; None if `state` was None.

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
        expect(
            state is None or len(state) == self.config.num_layers,
            "state",
            type(state).__name__,
            f"None or the {self.config.num_layers} layers' states from init_state",
        )
        if positions is not None:
            expect_array("positions", positions, (None, tokens.shape[1]), "integer")
        dtype = self.config.jnp_dtype
        h = _rows(self.embedding, tokens, self.config.vocab_size)
        if self.config.max_positions:
            h += self._learned_positions(tokens, state, positions, segment_ids, mask)
        h = keep_tokens(self.dropout(h.astype(dtype), deterministic=not self.has_rng("dropout")))
        residual: Any = None
        states = []
        context: dict[str, Any] = {
            "segment_ids": segment_ids, "positions": positions, "mask": mask, "tokens": tokens,
        }  # fmt: skip
        loop, period = range(0), 1
        if self.config.scan_layers and state is None and not self.is_initializing():
            loop, period = find_repeats(self.config.schedule)
        for index, layer in enumerate(self.layers):
            if index in loop:
                if index == loop.start:
                    blocks = self.layers[loop.start : loop.stop]
                    h, residual = run_repeats(blocks, period, h, residual, **context)
                continue
            layer_state = None if state is None else state[index]
            h, residual, layer_state = layer(h, residual, layer_state, **context)
            states.append(layer_state)
        h = self.final_norm(residual + h.astype(residual.dtype))
        return h, None if state is None else tuple(states)

    def _learned_positions(
        self,
        tokens: Int[Array, "B N"],
        state: State | None,
        positions: Positions | None,
        segment_ids: SegmentIds | None,
        mask: Mask | None,
    ) -> Float[Array, "rows N D"]:
        """Rows of the position table; NaN for real tokens beyond it."""
        index: Any = positions
        if index is None:
            stream = None if state is None else state[0].stream
            batch, length = tokens.shape
            index = ops.advance(stream, batch, length, segment_ids, mask)[0].positions
        if mask is not None:  # padding may lie beyond the table, and its NaN would reach every token
            index = jnp.where(mask, index, 0)
        return _rows(self.position_embedding, index, len(self.position_embedding))

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
        return tuple(
            make_mixer(self.config, index).init_state(batch_size, max_length, dtype)
            for index in range(self.config.num_layers)
        )

    @nn.nowrap
    def state_size(self, length: int) -> int:
        """Floats kept per sequence after `length` tokens, by the papers' formulas."""
        return sum(
            make_mixer(self.config, index).state_size(length) for index in range(self.config.num_layers)
        )


def rematerialised(remat: str) -> type[Block]:
    """The block whose backward pass recomputes what `ModelConfig.remat` says."""
    if remat == "none":
        return Block
    # Products without batch axes are those of activations with weights: the dear ones to make again, while
    # scores and states, which do have batch axes, are the large ones to keep.
    policies = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "block": None}
    return nn.remat(Block, policy=policies[remat])


def make_mixer(config: ModelConfig, index: int) -> Mixer:
    """The unbound mixer of layer `index`, initialised as the config says.

    Mixers whose initial values depend on their depth (RWKV) are numbered among their like.
    """
    spec = config.layer(index)
    depth = {}
    if "layer" in mixers.info(spec.mixer).options:
        alike = [i for i in range(config.num_layers) if config.layer(i).mixer == spec.mixer]
        depth = {"layer": alike.index(index), "num_layers": len(alike)}
    return mixers.make(
        spec.mixer,
        d_model=config.d_model,
        **{
            "dtype": config.jnp_dtype,
            "init_std": config.init_std,
            "out_init_std": config.residual_init_std,
            **depth,
            **spec.options,
        },
    )


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
