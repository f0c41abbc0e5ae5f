"""Classifier and autoencoder of whole sequences: a language model's body, pooled, and a head.

    logits = W pool(final_norm(blocks(embedding(tokens)))) + b

HyenaDNA classifies DNA this way (arXiv:2306.15794, section 4.2: pooled output of the language model), and so
does Based (Table 5).
"""

from typing import Any

import jax.numpy as jnp

from based_jax.mixers.contract import Projection
from based_jax.mixers.module import Module
from based_jax.models.config import ModelConfig
from based_jax.models.language_model import LanguageModel
from based_jax.models.layers import MLP, make_norm, sinusoids
from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.typing import Array, Float, Int, Mask
from based_jax.validate import expect, expect_array, expect_choice

POOLINGS = ("mean", "last")


class SequenceClassifier(Module):
    """Sequence classifier: a pooled language model body with a linear head.

    Attributes:
        config: config of the language model; its parameters are under "backbone".
        num_classes: number of classes, at least 2.
        pooling: "mean" over the tokens, or the "last" token, which in a causal model depends on all others.
    """

    config: ModelConfig
    num_classes: int
    pooling: str = "mean"

    def setup(self) -> None:
        expect(self.num_classes >= 2, "num_classes", self.num_classes, "at least 2")
        expect_choice("pooling", self.pooling, POOLINGS)
        self.backbone = LanguageModel(self.config)
        dtype = jnp.promote_types(self.config.jnp_dtype, jnp.float32)
        options: dict[str, Any] = {"bias": True, "dtype": dtype, "init_std": self.config.init_std}
        self.head = Projection((self.num_classes,), ("embed", None), **options)

    def __call__(
        self, tokens: Int[Array, "B N"], *, mask: Mask | None = None
    ) -> tuple[Float[Array, "B classes"], None]:
        """Return the class logits of every row.

        Args:
            tokens: integers below the vocabulary size.
            mask: True for real tokens, which are one run in each row, of at least one token; padding changes
                nothing. A mixer that takes whole rows only (`docs/mixers.md`) raises.

        Returns:
            logits (B, classes) float32; and None in place of a state.

        Raises:
            TypeError, ValueError: an argument of the wrong shape or dtype.
        """
        if mask is not None:
            expect_array("mask", mask, tokens.shape, "bool")
        hidden, _ = self.backbone.hidden(tokens, mask=mask)
        return self.head(pool(hidden, mask, self.pooling)), None


def pool(hidden: Float[Array, "B N D"], mask: Mask | None, pooling: str) -> Float[Array, "B D"]:
    """Return the mean of each row's real vectors or the last of them, at least float32."""
    hidden = hidden.astype(accumulation_dtype(hidden))
    if mask is None:
        return hidden.mean(axis=1) if pooling == "mean" else hidden[:, -1]
    counts: Any = jnp.sum(mask, axis=1, keepdims=True)
    if pooling == "mean":
        # Select instead of multiplying: 0 times infinity in padding is not 0.
        return jnp.where(mask[..., None], hidden, 0).sum(axis=1) / counts
    last = counts - 1 + jnp.argmax(mask, axis=1, keepdims=True)
    return jnp.take_along_axis(hidden, last[..., None], axis=1)[:, 0]


class AutoEncoder(Module):
    """Autoencoder of MAD's compression (Poli et al. 2024, section 3.1): all tokens from the last output.

        h_i = norm(MLP(norm(hidden(tokens)_N + p_i)))        logits_i = h_i E^T        p sinusoids

    Attributes:
        config: config of the language model; its parameters are under "backbone". The MLP is as wide.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.backbone = LanguageModel(config)
        self.norms = [make_norm(config.norm, config.norm_eps, config.jnp_dtype) for _ in range(2)]
        self.mlp = MLP(config.d_model, config.d_model, dtype=config.jnp_dtype)

    def __call__(self, tokens: Int[Array, "B N"]) -> tuple[Float[Array, "B N vocab"], None]:
        """Return the logits of every token, and None in place of a state."""
        return self.unembed(self.hidden(tokens)[0]), None

    def hidden(self, tokens: Int[Array, "B N"]) -> tuple[Float[Array, "B N D"], None]:
        """Return the decoder's output, and None in place of a state."""
        config, (encoder_norm, decoder_norm) = self.config, self.norms
        code = pool(self.backbone.hidden(tokens)[0], None, "last")[:, None]
        code += sinusoids(tokens.shape[1], config.d_model, code.dtype)
        return decoder_norm(self.mlp(encoder_norm(code.astype(config.jnp_dtype)))), None

    def unembed(self, hidden: Float[Array, "... D"]) -> Float[Array, "... vocab"]:
        """Return the logits of decoded vectors, with the encoder's embedding."""
        return self.backbone.unembed(hidden)
