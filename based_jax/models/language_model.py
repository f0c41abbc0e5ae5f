"""The decoder-only language model: embedding, blocks, final norm, head.

It has the interface of a mixer: `logits, state = model.apply(params, tokens, state)` serves training (state
None), prefill, chunked prefill and decoding.
"""

import functools
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from based_jax import mixers, ops
from based_jax.mixers.contract import Mixer, Projection
from based_jax.mixers.initializers import Initializer, draw_together, initial_shapes, named, normal
from based_jax.mixers.module import Module, find_stream, wants_output
from based_jax.models.block import Block, find_repeats, run_repeats
from based_jax.models.config import ModelConfig
from based_jax.models.layers import Drop, make_mlp, make_norm, rows, sinusoids
from based_jax.ops.core.padding import Shift, aligned, may_precede
from based_jax.ops.core.sharding import keep_tokens
from based_jax.registry import cached
from based_jax.typing import Array, Float, Int, Mask, Params, Positions, SegmentIds, State
from based_jax.validate import expect, expect_array


class LanguageModel(Module):
    """A language model described by a `ModelConfig`.

    Examples:
        >>> import jax, jax.numpy as jnp, based_jax as bj
        >>> model = bj.LanguageModel(bj.presets.get("based-tiny"))
        >>> tokens = jnp.zeros((1, 8), jnp.int32)
        >>> params = model.init(jax.random.key(0), tokens)
        >>> logits, _ = model.apply(params, tokens)
    """

    config: ModelConfig

    def __post_init__(self) -> None:
        expected = "a ModelConfig, such as based_jax.presets.get(name)"
        expect(isinstance(self.config, ModelConfig), "config", self.config, expected)
        super().__post_init__()

    def setup(self) -> None:
        config = self.config

        if config.has_projections:
            maps: dict[str, Any] = {"dtype": config.jnp_dtype, "init_std": config.init_std}
            maps["bias"] = config.input_dim is not None
            self.project_in = Projection((config.d_model,), (None, "embed"), **maps)
            self.project_out = Projection((config.embed_width,), ("embed", None), **maps)
        self.layers = [make_block(config, index) for index in range(config.num_layers)]
        for index, layer in enumerate(self.layers):
            expected = f"False with {config.layer(index).mixer}, which draws noise or has an auxiliary loss"
            expect(layer.mixer.is_pure or not config.scan_layers, "scan_layers", True, expected)
        if self.is_initializing():
            self._draw()
        for name, (size, initializer) in table_initializers(config).items():
            setattr(self, name, self.param(name, initializer, size))
        if config.block != "postnorm":
            eps = config.norm_eps if config.final_norm_eps is None else config.final_norm_eps
            self.final_norm = make_norm(config.final_norm or config.norm, eps, config.jnp_dtype)
        self.dropout = Drop(0.0 if config.block == "postnorm" else config.embed_dropout)
        self.final_dropout = Drop(config.residual_dropout if config.block == "prenorm" else 0.0)

    def __call__(
        self,
        tokens: Int[Array, "B N"] | Float[Array, "B N input_dim"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N vocab"], State | None]:
        """Return next-token logits and the next state.

        Args:
            tokens: integers below the vocabulary size; with `ModelConfig.input_dim` vectors of that width.
            state: state to continue from; None for a parallel pass without a state.
            segment_ids: documents packed into one row do not see each other.
            positions: for rotary and learned embeddings; default: counted from the start of each segment.
            mask: True for real tokens, which are one run in each row: padding is before, after or around it.

        Returns:
            logits: (B, N, padded vocabulary) float32. Training lowers the padded entries; mask them before
                sampling (`generate` does). Out-of-range positions give NaN, and tokens unless masked.
            state: after the last real token; None if `state` was None.

        Raises:
            TypeError, ValueError: an argument of the wrong shape or dtype.
        """
        hidden, state = self.hidden(tokens, state, segment_ids=segment_ids, positions=positions, mask=mask)
        return self.unembed(hidden), state

    def hidden(
        self,
        tokens: Int[Array, "B N"] | Float[Array, "B N input_dim"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        """Return the final norm's output, for callers that `unembed` few positions only, and the next state.

        The config's dropouts and `drop_path` apply if `apply` is given `rngs={"dropout": key}`.
        """
        config, dtype = self.config, self.config.jnp_dtype
        if config.input_dim is None:
            expect_array("tokens", tokens, ("B", "N"), "integer")
        else:
            expect_array("tokens", tokens, ("B", "N", config.input_dim), "floating")
        if mask is not None:
            expect_array("mask", mask, tuple(tokens.shape[:2]), "bool")
        if mask is not None and may_precede(mask):
            shift = Shift(mask, tokens)
            given = shift.left({"segment_ids": segment_ids, "positions": positions, "mask": mask})
            with aligned():
                hidden, state = self.hidden(shift.left(tokens), state, **given)
            return shift.back(hidden), state
        ids: Any = None
        if config.input_dim is None:
            ids = tokens if mask is None else jnp.where(mask, tokens, 0)  # those of padding may be any
        expected = f"None or the {self.config.num_layers} layers' states from init_state"
        is_known = state is None or len(state) == self.config.num_layers
        expect(is_known, "state", type(state).__name__, expected)
        if positions is not None:
            expect_array("positions", positions, (None, tokens.shape[1]), "integer")
        h: Any = tokens if ids is None else rows(self.embedding_table(), ids, config.vocab_size)
        if config.has_projections:
            h = self.project_in(h)
        if config.max_positions:
            index = positions
            if index is None:
                stream = None if state is None else find_stream(state[0])
                index = ops.advance(stream, tokens.shape[0], tokens.shape[1], segment_ids, mask)[0].positions
            # Padding may lie after the table's end; its NaN would reach every token.
            index = index if mask is None else jnp.where(mask, index, 0)
            h += rows(self.position_table(), index)
        h = keep_tokens(self.dropout(h.astype(dtype)))
        if config.block.startswith("parallel"):
            h = h.astype(config.stream_dtype)  # the dtype that blocks return
        residual: Any = None
        states: list[State] = []
        context: dict[str, Any] = {"segment_ids": segment_ids, "positions": positions, "mask": mask}
        context["tokens"] = ids
        loop, period = range(0), 1
        layers = self.layers
        if self.is_initializing():
            if not wants_output():
                layers, residual = [], h
        elif config.scan_layers and state is None:
            loop, period = find_repeats(config.schedule)
        for number, layer in enumerate(layers):
            if number in loop:
                if number == loop.start:
                    blocks = self.layers[loop.start : loop.stop]
                    h, residual = run_repeats(blocks, period, h, residual, **context)
                continue
            layer_state = None if state is None else state[number]
            h, residual, layer_state = layer(h, residual, layer_state, **context)
            states.append(layer_state)
        if config.block != "postnorm":
            h = self.final_norm(residual + self.final_dropout(h).astype(residual.dtype))
        if config.has_projections:
            h = self.project_out(h)
        return h, None if state is None else tuple(states)

    def _draw(self) -> None:
        """Set the initial tables, and each layer's variables, which depend on the key and its index alone.

        One program for each kind of layer runs over its layers.
        """
        config = self.config
        h = jnp.zeros((1, 1, config.d_model), config.jnp_dtype)
        h = h.astype(config.stream_dtype) if config.block.startswith("parallel") else h
        tokens = jnp.zeros((1, 1), jnp.int32) if config.input_dim is None else None
        key = self.make_rng("params")

        def draw(block: Block, key: Array) -> Any:
            return block.init(key, h, tokens=tokens)

        tables = table_initializers(config)
        keys = jax.random.split(jax.random.fold_in(key, config.num_layers), len(tables))
        for own, (name, (size, initializer)) in zip(keys, tables.items(), strict=True):
            self.put_variable("params", name, initializer(own, size))
        for layers in layer_kinds(config):
            own = functools.partial(draw, make_block(config.replace(remat="none"), layers[0]))
            keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.array(layers, jnp.uint32))
            # `vmap` would need the memory of all layers' vectors at once.
            stacks: Any = cast(Any, lax.map)(functools.partial(draw_together, own), keys)
            for index, layer in enumerate(layers):
                for collection, values in jax.tree.map(operator.itemgetter(index), stacks).items():
                    self.put_variable(collection, f"layers_{layer}", values)

    def embedding_table(self) -> Float[Array, "vocab D"]:
        """Return the token embedding, without a gradient if it is frozen."""
        return lax.stop_gradient(self.embedding) if self.config.freeze_embedding else self.embedding

    def position_table(self) -> Float[Array, "positions D"]:
        """Return the position embedding, learned or not."""
        if self.config.positions == "learned":
            return self.position_embedding
        wide = jnp.promote_types(self.config.jnp_dtype, jnp.float32)
        return sinusoids(self.config.max_positions, self.config.d_model, wide)

    def unembed(self, hidden: Float[Array, "... D"]) -> Float[Array, "... vocab"]:
        """Return the logits of hidden vectors, accumulated in float32 (float64 for a float64 model)."""
        head = self.embedding_table() if self.config.tie_embeddings else self.head
        dtype = self.config.jnp_dtype
        wide = jnp.promote_types(dtype, jnp.float32)
        return jnp.einsum(
            "...d,vd->...v", hidden.astype(dtype), head.astype(dtype), preferred_element_type=wide
        )

    @nn.nowrap
    def output_embedding(self, params: Params) -> Float[Array, "vocab D"]:
        """Return the matrix that `unembed` takes from ``{"params": ...}``; for `ops.cross_entropy`."""
        table = nn.meta.unbox(params["params"]["embedding" if self.config.tie_embeddings else "head"])
        is_frozen = self.config.tie_embeddings and self.config.freeze_embedding
        return lax.stop_gradient(table) if is_frozen else table

    @nn.nowrap
    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        """Return the state before the first token: one entry per layer; needs no parameters.

        Args:
            batch_size: rows.
            max_length: maximum tokens of a row; needed if a layer's state grows (full attention).
            dtype: dtype of cached activations; default the model's. Running sums are at least float32.

        Raises:
            ValueError: an argument of another type or below 1, or max_length missing where a layer needs it.
        """
        mixers = map(functools.partial(make_mixer, self.config), range(self.config.num_layers))
        return tuple(mixer.init_state(batch_size, max_length, dtype) for mixer in mixers)

    @nn.nowrap
    def state_size(self, length: int) -> int:
        """Return the floats kept per sequence after `length` tokens, by the papers' formulas."""
        config = self.config
        return sum(make_mixer(config, index).state_size(length) for index in range(config.num_layers))


def _spherical(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    points = normal(1.0)(key, shape, dtype)
    return points / jnp.sqrt(jnp.sum(jnp.square(points), axis=-1, keepdims=True))


INITIALIZERS: dict[str, Any] = {"normal": normal(1.0), "spherical": _spherical}
"""Initialisers of token embeddings, besides the default, by their names in Zoology's code."""


def table_initializers(config: ModelConfig) -> dict[str, tuple[tuple[int, int], Initializer]]:
    """Return sizes and initializers of a model's matrices outside of its layers, by name."""
    init, size = normal(config.init_std), (config.padded_vocab_size, config.embed_width)
    found = {"embedding": (size, named(INITIALIZERS.get(config.embed_init, init), "vocab", "embed"))}
    if not config.tie_embeddings:
        found["head"] = size, named(init, "vocab", "embed")
    if config.max_positions and config.positions == "learned":
        found["position_embedding"] = (config.max_positions, config.d_model), named(init, None, "embed")
    return found


def rematerialised(remat: str) -> type[Block]:
    """Return the block class whose backward pass recomputes what `ModelConfig.remat` selects."""
    if remat == "none":
        return Block
    # Save the products of activations with weights (no batch axes): they are the expensive ones to recompute.
    # Scores and states, which have batch axes, would take the most memory.
    policies = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "block": None}
    return nn.remat(Block, policy=policies[remat])


def make_block(config: ModelConfig, index: int) -> Block:
    """Return the unbound block of layer `index`."""
    mlp: dict[str, Any] = {"d_model": config.d_model, "hidden": config.mlp_hidden}
    mlp |= {"activation": config.mlp_activation, "bias": config.mlp_bias, "out_bias": config.mlp_out_bias}
    mlp |= {"init_std": config.init_std, "out_init_std": config.residual_init_std, "dtype": config.jnp_dtype}
    # The first branch of a pre-norm model is the embedding, with its own dropout rate.
    first = 0.0 if config.block == "prenorm" else config.embed_dropout
    is_first = index == 0 and not config.block.startswith("parallel")
    return rematerialised(config.remat)(
        mixer=make_mixer(config, index),
        mlp=make_mlp(config.mlp, **mlp),
        norm=config.norm,
        norm_eps=config.norm_eps,
        dtype=config.jnp_dtype,
        kind=config.block,
        dropout1=first if is_first else config.residual_dropout,
        dropout2=config.residual_dropout,
        drop_path=config.drop_path,
        residual_in_fp32=config.residual_in_fp32,
        norms_outputs=config.schedule[index] in config.output_norms,
    )


def make_mixer(config: ModelConfig, index: int) -> Mixer:
    """Return the unbound mixer of layer `index`, initialised as the config says.

    Mixers whose initial values depend on their depth (RWKV) are indexed among layers of the same type.
    """
    spec = config.layer(index)
    options: dict[str, Any] = {"dtype": config.jnp_dtype, "init_std": config.init_std}
    options |= {"out_init_std": config.residual_init_std}
    if "layer" in mixers.info(spec.mixer).options:
        alike = [i for i in range(config.num_layers) if config.layer(i).mixer == spec.mixer]
        options |= {"layer": alike.index(index), "num_layers": len(alike)}
    return mixers.make(spec.mixer, d_model=config.d_model, **{**options, **spec.options})


def layer_kinds(config: ModelConfig) -> list[list[int]]:
    """Group the indices of layers whose initial parameters have the same distribution."""
    kinds: dict[Any, list[int]] = {}
    for index, letter in enumerate(config.schedule):
        depends_on_depth = "layer" in mixers.info(config.layer(index).mixer).options
        kinds.setdefault((letter, index if depends_on_depth else None), []).append(index)
    return list(kinds.values())


def blank_inputs(config: ModelConfig, length: int = 1) -> Array:
    """Return a row of tokens 0, or of zero vectors for a model of vectors, for `init`."""
    if config.input_dim is None:
        return jnp.zeros((1, length), jnp.int32)
    return jnp.zeros((1, length, config.input_dim), jnp.float32)


@cached(maxsize=64)
def param_shapes(config: ModelConfig) -> Mapping[str, Any]:
    """Return shapes and dtypes of the "params" that ``init`` makes; traces one layer of each kind."""
    kinds = sorted(set(config.schedule))
    model = LanguageModel(config.replace(schedule="".join(kinds)))
    token = jax.eval_shape(lambda: blank_inputs(config))
    shapes = dict(nn.meta.unbox(initial_shapes(model.init, jax.random.key(0), token))["params"])
    layers = {kind: shapes.pop(f"layers_{index}") for index, kind in enumerate(kinds)}
    return MappingProxyType(shapes | {f"layers_{i}": layers[kind] for i, kind in enumerate(config.schedule)})


def param_count(config: ModelConfig) -> int:
    """Count the parameters; a tied embedding counts once."""
    return sum(leaf.size for leaf in jax.tree.leaves(dict(param_shapes(config))))
