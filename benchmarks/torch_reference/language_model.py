"""The language model around the layers, and the transfer of our parameters to it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from based_jax.convert.layouts import flatten, to_tensors
from based_jax.convert.tables import MIXERS, model_rules
from based_jax.models import ModelConfig
from based_jax.typing import Params
from benchmarks.torch_reference.layers import Attention, GatedConv, GatedMLP, RMSNorm, TaylorAttention

LAYERS: dict[str, Callable[[int, Mapping[str, Any]], nn.Module]] = {
    "gated_conv": lambda width, options: GatedConv(width, options["expand"], options["kernel_size"]),
    "linear_attention": lambda width, options: TaylorAttention(
        width, options["num_heads"], options["feature_dim"]
    ),
    "sliding_window": lambda width, options: Attention(width, options["num_heads"], 1.0, options["left"]),
    "attention": lambda width, options: Attention(
        width, options["num_heads"], options["rotary_fraction"], None
    ),
}
"""Registered name -> the mixer in torch."""


class Block(nn.Module):
    """r <- r + mixer(norm(r));   r <- r + mlp(norm(r))."""

    def __init__(self, config: ModelConfig, index: int):
        super().__init__()
        spec = config.layer(index)
        self.norm1 = RMSNorm(config.d_model, config.norm_eps)
        self.norm2 = RMSNorm(config.d_model, config.norm_eps)
        self.mixer = LAYERS[spec.mixer](config.d_model, spec.options)
        self.mlp = GatedMLP(config.d_model, config.mlp_hidden)

    def forward(self, x):
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Map tokens to the final norm's output."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(config.padded_vocab_size, config.d_model)}
        )
        self.layers = nn.ModuleList(Block(config, index) for index in range(config.num_layers))
        self.ln_f = RMSNorm(config.d_model, config.norm_eps)

    def forward(self, tokens):
        x = self.embeddings["word_embeddings"](tokens)
        for layer in self.layers:
            x = layer(x)
        return self.ln_f(x)


class LanguageModel(nn.Module):
    """Compute logits with the tied embedding."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.transformer = Transformer(config)
        self.rules = model_rules([MIXERS[config.layer(index).mixer] for index in range(config.num_layers)])

    def forward(self, tokens):
        return self.transformer(tokens) @ self.transformer.embeddings["word_embeddings"].weight.T

    def start(self, params: Params) -> "LanguageModel":
        """Copy JAX's parameters."""
        tensors = to_tensors(self.rules, flatten(params["params"]))
        self.load_state_dict({key: torch.from_numpy(np.array(x)) for key, x in tensors.items()})
        return self
