"""Autoencoder of MAD's compression task (Poli et al. 2024, section 3.1): a language model's body and an MLP.

    h_i = norm(MLP(norm(body(tokens)_N + p_i)))        logits_i = h_i E^T        p sinusoids

The MLP, as wide as the model, recovers every token from the output at the last one.
"""

from based_jax.mixers.module import Module
from based_jax.models.classifier import pool
from based_jax.models.config import ModelConfig
from based_jax.models.embedding import sinusoids
from based_jax.models.language_model import LanguageModel
from based_jax.models.mlp import MLP
from based_jax.models.norm import make_norm
from based_jax.typing import Array, Float, Int


class AutoEncoder(Module):
    """Language model whose outputs are decoded from the last token's: `unembed` of `hidden`."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.encoder = LanguageModel(config)
        self.norms = [make_norm(config.norm, config.norm_eps, config.jnp_dtype) for _ in range(2)]
        self.mlp = MLP(config.d_model, config.d_model, dtype=config.jnp_dtype)

    def __call__(self, tokens: Int[Array, "B N"]) -> tuple[Float[Array, "B N vocab"], None]:
        """Return the logits of every token, and None in place of a state."""
        return self.unembed(self.hidden(tokens)[0]), None

    def hidden(self, tokens: Int[Array, "B N"]) -> tuple[Float[Array, "B N D"], None]:
        """Return the decoder's output, and None in place of a state."""
        config, (encoder_norm, decoder_norm) = self.config, self.norms
        code = pool(self.encoder.hidden(tokens)[0], None, "last")[:, None]
        code += sinusoids(tokens.shape[1], config.d_model, code.dtype)
        return decoder_norm(self.mlp(encoder_norm(code.astype(config.jnp_dtype)))), None

    def unembed(self, hidden: Float[Array, "... D"]) -> Float[Array, "... vocab"]:
        """Return the logits of decoded vectors, with the encoder's embedding."""
        return self.encoder.unembed(hidden)
