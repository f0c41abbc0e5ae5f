"""The language model around the layers, and the transfer of our parameters to it."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from based_jax.convert.layouts import flatten, to_tensors
from based_jax.convert.tables import mixer_rules, model_rules
from based_jax.models import ModelConfig
from based_jax.typing import Params
from benchmarks.torch_reference import taylor
from benchmarks.torch_reference.layers import Attention, GatedConv, GatedMLP, RMSNorm, TaylorAttention

LAYERS: dict[str, Callable[..., nn.Module]] = {
    "gated_conv": lambda width, options, attend: GatedConv(width, options["expand"], options["kernel_size"]),
    "linear_attention": lambda width, options, attend: TaylorAttention(
        width, options["num_heads"], options["feature_dim"], attend
    ),
    "sliding_window": lambda width, options, attend: Attention(
        width, options["num_heads"], 1.0, options["left"]
    ),
    "attention": lambda width, options, attend: Attention(
        width, options["num_heads"], options["rotary_fraction"], None
    ),
}
"""Registered name -> the mixer in torch, with a form of Taylor attention."""


class Block(nn.Module):
    """r <- r + mixer(norm(r));   r <- r + mlp(norm(r))."""

    def __init__(self, config: ModelConfig, index: int, attend: Callable[..., torch.Tensor]):
        super().__init__()
        spec = config.layer(index)
        self.norm1 = RMSNorm(config.d_model, config.norm_eps)
        self.norm2 = RMSNorm(config.d_model, config.norm_eps)
        self.mixer = LAYERS[spec.mixer](config.d_model, spec.options, attend)
        self.mlp = GatedMLP(config.d_model, config.mlp_hidden)

    def forward(self, x):
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Map tokens to the final norm's output."""

    def __init__(self, config: ModelConfig, attend: Callable[..., torch.Tensor]):
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {"word_embeddings": nn.Embedding(config.padded_vocab_size, config.d_model)}
        )
        self.layers = nn.ModuleList(Block(config, index, attend) for index in range(config.num_layers))
        self.ln_f = RMSNorm(config.d_model, config.norm_eps)

    def forward(self, tokens):
        x = self.embeddings["word_embeddings"](tokens)
        for layer in self.layers:
            x = layer(x)
        return self.ln_f(x)


class LanguageModel(nn.Module):
    """Compute logits with the tied embedding; `attend` is the form of Taylor attention."""

    def __init__(self, config: ModelConfig, attend: Callable[..., torch.Tensor] = taylor.quadratic):
        super().__init__()
        self.transformer = Transformer(config, attend)
        self.rules = model_rules(
            [mixer_rules(config.layer(index).mixer) for index in range(config.num_layers)]
        )

    def forward(self, tokens):
        return self.transformer(tokens) @ self.transformer.embeddings["word_embeddings"].weight.T

    def start(self, params: Params) -> "LanguageModel":
        """Copy JAX's parameters."""
        tensors = to_tensors(self.rules, flatten(params["params"]))
        self.load_state_dict({key: torch.from_numpy(np.array(x)) for key, x in tensors.items()})
        return self
