"""A Transformer++ in torch, with the authors' names of layers, and the step of `based_jax.training.step`.

r <- r + attention(norm(r));   r <- r + mlp(norm(r));   logits = norm(r) E^T;   r is (B, N, D)
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from based_jax.convert.layouts import flatten, to_tensors
from based_jax.convert.tables import mixer_rules, model_rules
from based_jax.models import ModelConfig
from based_jax.training.optimizer import OptimizerConfig
from based_jax.typing import Params
from benchmarks.machine import cores

ROTARY_BASE = 10000.0


class GatedMLP(nn.Module):
    """(a * silu(g)) W2 with a, g = split(x W1)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * hidden, bias=False)
        self.fc2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        value, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(value * F.silu(gate))


class Attention(nn.Module):
    """Causal softmax attention with rotary positions, by torch's fused kernel."""

    def __init__(self, width: int, heads: int, rotary_fraction: float):
        super().__init__()
        self.heads = heads
        self.rotary_dim = int(rotary_fraction * width / heads)
        self.Wqkv = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        parts = self.Wqkv(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        q, k = rotary(q, self.rotary_dim), rotary(k, self.rotary_dim)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).flatten(2))


def rotary(x, dim: int):
    """Rotate halves of the first `dim` channels by position * base^(-2 i / dim)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, dim, 2, device=x.device) / dim)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    one, two, rest = x.split((dim // 2, dim // 2, x.shape[-1] - dim), dim=-1)
    return torch.cat((one * cos - two * sin, one * sin + two * cos, rest), dim=-1)


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: ModelConfig, index: int):
        super().__init__()
        options = config.layer(index).options
        self.norm1, self.norm2 = (nn.RMSNorm(config.d_model, config.norm_eps) for _ in range(2))
        self.mixer = Attention(config.d_model, options["num_heads"], options["rotary_fraction"])
        self.mlp = GatedMLP(config.d_model, config.mlp_hidden)

    def forward(self, x):
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    """Map tokens (B, N) to logits (B, N, vocabulary) with the tied embedding."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.padded_vocab_size, config.d_model)
        self.layers = nn.ModuleList(Block(config, index) for index in range(config.num_layers))
        self.ln_f = nn.RMSNorm(config.d_model, config.norm_eps)
        self.rules = model_rules([mixer_rules("attention")] * config.num_layers)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.ln_f(x) @ self.embedding.weight.T

    def start(self, params: Params) -> "LanguageModel":
        """Copy JAX's parameters."""
        tensors = to_tensors(self.rules, flatten(params["params"]))
        names = {key: key.removeprefix("transformer.") for key in tensors}
        names["transformer.embeddings.word_embeddings.weight"] = "embedding.weight"
        self.load_state_dict({names[key]: torch.from_numpy(np.array(x)) for key, x in tensors.items()})
        return self


def make_step(
    model: LanguageModel, config: OptimizerConfig, batches: Mapping[str, np.ndarray], compiled: bool
) -> Callable[[int], float]:
    """Return `step(index)`: train on batch `index` at the peak learning rate; return nats per token.

    Cross-entropy, clipping and AdamW; on a GPU products are in bfloat16 (autocast).

    Args:
        config: optimizer settings; no warm-up and no decay of the rate.
        batches: inputs and targets (batches, B, N).
        compiled: whether the model goes through `torch.compile`.
    """
    device = torch.get_default_device().type
    torch.set_num_threads(cores())
    # As `based_jax.training.optimizer.decay_mask`: maps and taps, neither vectors nor the embedding.
    decayed = [x for name, x in model.named_parameters() if x.ndim > 1 and "embedding" not in name]
    others = [x for name, x in model.named_parameters() if x.ndim <= 1 or "embedding" in name]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
    forward = torch.compile(model) if compiled else model
    inputs, targets = (torch.tensor(batches[name].astype(np.int64)) for name in ("inputs", "targets"))

    def step(index: int) -> float:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            logits = forward(inputs[index]).flatten(0, 1)
            loss = F.cross_entropy(logits.float(), targets[index].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        return loss.item()

    return step
