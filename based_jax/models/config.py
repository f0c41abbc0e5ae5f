"""Configuration of a language model: frozen, JSON-serialisable, with a layer schedule."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, cast

import jax.numpy as jnp
from flax.core import FrozenDict

from based_jax.fields import AtLeastZero, Count, Epsilon, Share, Size, expect_fields, plain
from based_jax.mixers.registry import expect_options
from based_jax.models.block import BLOCKS
from based_jax.ops.core.products import ACTIVATIONS
from based_jax.validate import expect, expect_choice, nearest

MLPS = ("gated", "plain", "identity", "none")
NORMS = ("rms", "layer")
POSITIONS = ("learned", "sinusoidal")
EMBEDDINGS = ("default", "normal", "spherical")
REMAT = ("none", "dots", "block")
MAX_LAYERS = 1024


@dataclasses.dataclass(frozen=True)
class MixerSpec:
    """A mixer by its registered name, with options.

    Attributes:
        mixer: one of `based_jax.mixers.names()`.
        options: arguments of `based_jax.mixers.make` besides d_model; `based_jax.mixers.options` lists them.

    `ModelConfig` checks that the mixer and its options exist.

    Raises:
        ValueError: options that are not a mapping.
    """

    mixer: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=FrozenDict[str, Any])

    def __post_init__(self) -> None:
        expect(isinstance(self.options, Mapping), "options", self.options, "a mapping from options to values")
        options = {name: plain(value) for name, value in cast(dict[str, Any], self.options).items()}
        object.__setattr__(self, "options", FrozenDict(options))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder-only language model (Based, section 4 and Tables 7-8).

    Any layer can have any mixer: `schedule` has one letter per layer and `mixers` maps letters to mixers.

    Attributes:
        vocab_size: tokens of the tokenizer; the embedding is padded up to a multiple of `pad_vocab_multiple`.
        d_model: width D of the residual stream.
        schedule: one letter per layer, e.g. "CLSCC".
        mixers: the mixer of each letter of the schedule.
        mlp_hidden: hidden width of the MLP; ignored without an MLP.
        mlp: gated (such as SwiGLU), plain, identity (the second norm alone, as in Zoology's synthetic
            models), or none: a block is then a norm and a mixer, as in Mamba.
        mlp_activation: activation of the gate, or of a plain MLP: silu, gelu (exact), gelu_tanh, sigmoid,
            relu or squared_relu.
        mlp_bias: add biases in the MLP.
        mlp_out_bias: add a bias in the MLP's output map; None for the value of `mlp_bias`.
        block: arrangement of a block: prenorm, postnorm, parallel (mixer and MLP in parallel) or
            parallel_tied (the same with one norm); see `based_jax.models.block`.
        norm: rms or layer.
        norm_eps: epsilon of every norm.
        final_norm: norm after the last block; None for `norm`. Post-norm models have none.
        final_norm_eps: epsilon of the final norm; None for `norm_eps`.
        embed_dropout: dropout rate of the embeddings, if `apply` is given a "dropout" key. Post-norm models
            apply it to the first mixer's output, as flash-attention does.
        residual_dropout: dropout rate of every branch before it is added to the residual stream.
        drop_path: probability that a row skips a whole branch, the embedding included (stochastic depth).
        residual_in_fp32: keep the residual stream in float32 even if `dtype` is narrower.
        max_positions: rows of a position embedding, which then limits the length; 0 for none.
        positions: kind of position embedding: learned or sinusoidal.
        embed_dim: width of the token embedding, with linear maps to d_model and back; None for d_model
            without those maps.
        input_dim: width of the vectors that the model reads in place of tokens: linear maps with biases from
            them to d_model, and from there to `embed_dim` (None for d_model). The embedding is the head only.
            None for a model of tokens.
        embed_init: initial token embedding: default (normal with `init_std`), normal (with std 1), or
            spherical (rows of norm 1).
        freeze_embedding: do not train the token embedding, nor a head tied to it.
        tie_embeddings: use the embedding as the output head; False gives the head a separate matrix.
        pad_vocab_multiple: pad the embedding's rows to a multiple of this.
        init_std: standard deviation of the initial weights; divided by sqrt(2 * layers) in maps back into
            the residual stream.
        max_length: training context, the default length of the train command; not a limit of the model.
        dtype: dtype of the computation; parameters, residual stream, running sums and logits are float32.
        remat: what the backward pass recomputes: "none", "block" (everything inside each block), or "dots"
            (everything except the products with weights, which are saved).
        scan_layers: run repeated layers as one loop in stateless calls: a smaller program, and on a CPU the
            only way that `remat` saves much memory. Not for blocks or mixers with noise, or mixers with
            auxiliary losses.
        output_norms: letters of the schedule whose pre-norm blocks norm the outputs of mixer and MLP, not
            their inputs (OLMo 2's reordered norms).

    Raises:
        ValueError: a value of another type or outside the range of its annotation (`based_jax.fields`), more
            than 1024 layers, or letters without a mixer.
    """

    vocab_size: Size
    d_model: Size
    schedule: str
    mixers: Mapping[str, MixerSpec]
    mlp_hidden: Count = 0
    mlp: str = "gated"
    mlp_activation: str = "silu"
    mlp_bias: bool = False
    mlp_out_bias: bool | None = None
    block: str = "prenorm"
    norm: str = "rms"
    norm_eps: Epsilon = 1e-5
    final_norm: str | None = None
    final_norm_eps: Epsilon | None = None
    embed_dropout: Share = 0.0
    residual_dropout: Share = 0.0
    drop_path: Share = 0.0
    residual_in_fp32: bool = True
    max_positions: Count = 0
    positions: str = "learned"
    embed_dim: Size | None = None
    input_dim: Size | None = None
    embed_init: str = "default"
    freeze_embedding: bool = False
    tie_embeddings: bool = True
    pad_vocab_multiple: Size = 8
    init_std: AtLeastZero = 0.02
    max_length: Size = 2048
    dtype: str = "float32"
    remat: str = "none"
    scan_layers: bool = False
    output_norms: str = ""

    def __post_init__(self) -> None:
        expect_fields(type(self), vars(self))
        for name, value in list(vars(self).items()):
            object.__setattr__(self, name, FrozenDict(value) if name == "mixers" else plain(value))
        for spec in self.mixers.values():
            expect_options(spec.mixer, spec.options)
        if self.mlp not in ("identity", "none"):
            expect(self.mlp_hidden >= 1, "mlp_hidden", self.mlp_hidden, "a positive integer")
        layers = len(self.schedule)
        expect(layers >= 1, "schedule", self.schedule, "at least one layer")
        expect(layers <= MAX_LAYERS, "schedule", self.schedule, f"at most {MAX_LAYERS} layers")
        is_known = set(self.schedule) <= set(self.mixers)
        expect(is_known, "schedule", self.schedule, f"letters among {sorted(self.mixers)}")
        expect_choice("mlp", self.mlp, MLPS)
        expect_choice("mlp_activation", self.mlp_activation, tuple(ACTIVATIONS))
        expect_choice("norm", self.norm, NORMS)
        expect_choice("block", self.block, BLOCKS)
        is_known = set(self.output_norms) <= set(self.mixers)
        expect(is_known, "output_norms", self.output_norms, f"letters among {sorted(self.mixers)}")
        can_norm = self.block == "prenorm" or not self.output_norms
        expect(can_norm, "output_norms", self.output_norms, f"'' with block = {self.block!r}")
        choices = (None,) if self.block == "postnorm" else (None, *NORMS)
        expect_choice("final_norm", self.final_norm, choices)
        expect_choice("positions", self.positions, POSITIONS)
        expect_choice("embed_init", self.embed_init, EMBEDDINGS)
        for name in ("embed_dropout", "residual_dropout", "drop_path"):
            expect(getattr(self, name) < 1, name, getattr(self, name), "from 0 to below 1")
        if self.block.startswith("parallel"):
            has_mlp = self.mlp not in ("identity", "none")
            expect(has_mlp, "mlp", self.mlp, f"gated or plain with block = {self.block!r}")
            expect(self.drop_path == 0, "drop_path", self.drop_path, f"0 with block = {self.block!r}")
        can_scan = not (self.scan_layers and self.is_noisy)
        expect(can_scan, "scan_layers", True, "False with dropout in the blocks")
        if self.input_dim is not None:
            expect(self.tie_embeddings, "tie_embeddings", False, "True with input_dim")
        is_fixed = self.freeze_embedding and self.tie_embeddings and self.input_dim is None
        expect(not is_fixed, "freeze_embedding", True, "False with a tied head, which would not learn either")
        expect_choice("remat", self.remat, REMAT)
        expect_choice("dtype", self.dtype, ("float32", "bfloat16", "float16", "float64"))

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.schedule)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding."""
        return -(-self.vocab_size // self.pad_vocab_multiple) * self.pad_vocab_multiple

    @property
    def embed_width(self) -> int:
        """Columns of the embedding, and of the head."""
        return self.d_model if self.embed_dim is None else self.embed_dim

    @property
    def has_projections(self) -> bool:
        """Whether linear maps lead from the inputs to d_model, and from there to the head."""
        return self.embed_dim is not None or self.input_dim is not None

    @property
    def stream_dtype(self) -> Any:
        """Dtype of the residual stream."""
        wide = jnp.promote_types(self.jnp_dtype, jnp.float32)
        return wide if self.residual_in_fp32 else self.jnp_dtype

    @property
    def is_noisy(self) -> bool:
        """Whether blocks drop parts of residual branches in training."""
        embed = self.embed_dropout > 0 and self.block == "postnorm"
        return embed or self.residual_dropout > 0 or self.drop_path > 0

    @property
    def residual_init_std(self) -> float:
        """Initial standard deviation of the maps back into the residual stream."""
        return self.init_std / (2 * self.num_layers) ** 0.5

    @property
    def jnp_dtype(self) -> Any:
        """`dtype` as a JAX dtype."""
        return jnp.dtype(self.dtype)

    def layer(self, index: int) -> MixerSpec:
        """Return the mixer at layer `index`."""
        return self.mixers[self.schedule[index]]

    def replace(self, **changes: Any) -> "ModelConfig":
        """Return a copy with some fields replaced; unknown names are errors."""
        return dataclasses.replace(self, **changes)

    def with_mixer(self, mixer: str, layers: Iterable[int] | None = None, **options: Any) -> "ModelConfig":
        """Return a copy with another mixer in some layers.

        Args:
            mixer: its registered name.
            layers: which layers get it; None for all.
            options: options of the mixer, besides d_model.

        Raises:
            ValueError: a layer that this model does not have.
        """
        given = range(self.num_layers) if layers is None else layers
        expect(isinstance(given, Iterable), "layers", layers, "None, or indices of layers")
        chosen = set[int]()
        for layer in given:
            is_layer = isinstance(layer, Integral) and 0 <= layer < self.num_layers
            expect(is_layer, "layer", layer, f"0 to {self.num_layers - 1}")
            chosen.add(int(layer))
        free = [chr(code) for code in range(ord("A"), 0x250) if chr(code) not in self.mixers]
        # A letter for each arrangement of the blocks, which stays.
        kinds = sorted({self.schedule[layer] in self.output_norms for layer in chosen})
        letters = dict(zip(kinds, free, strict=False))
        schedule = "".join(
            letters[old in self.output_norms] if i in chosen else old for i, old in enumerate(self.schedule)
        )
        mixers = {key: spec for key, spec in self.mixers.items() if key in schedule}
        mixers |= dict.fromkeys(letters.values(), MixerSpec(mixer, options))
        norms = "".join(letter for letter in self.output_norms + letters.get(True, "") if letter in mixers)
        return self.replace(schedule=schedule, mixers=mixers, output_norms=norms)

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain data for JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["mixers"] = {
            letter: {"mixer": spec.mixer, "options": dict(spec.options)}
            for letter, spec in self.mixers.items()
        }
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ModelConfig":
        """Make a config from the output of `to_dict`.

        Raises:
            ValueError: names unknown, missing or invalid entries.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - known)
        for key in unknown[:1]:
            only = "only the keys " + ", ".join(sorted(known))
            expect(False, "config", unknown, only + nearest(key, sorted(known)))
        required = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
        missing = sorted(required - set(fields))
        expect(not missing, "config", sorted(fields), "the missing keys " + ", ".join(missing))
        mixers = fields["mixers"]
        expect(isinstance(mixers, Mapping), "config mixers", mixers, "a mapping from letters to mixers")
        specs: dict[str, Any] = {}
        for letter, spec in cast(dict[str, Any], mixers).items():
            keys = set(cast(dict[str, Any], spec)) if isinstance(spec, Mapping) else set[str]()
            is_spec = {"mixer"} <= keys <= {"mixer", "options"}
            expected = "a mapping with 'mixer' and optionally 'options'"
            expect(is_spec, f"config mixers[{letter!r}]", spec, expected)
            specs[letter] = MixerSpec(**cast(dict[str, Any], spec))
        settings: dict[str, Any] = {**fields, "mixers": specs}
        return cls(**settings)

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)
