"""Train the model of the MQAR sweep in torch, one model at a time. Needs torch.

    r <- r + mixer(LN1(r));   r <- r + LN2(r)      per layer;      logits = LN_f(r) E^T

Eager torch with its own layers and fused attention; Based's weights come from the scores (the quadratic view
of the authors' synthetic studies), without making the features. See `based_jax.models.mqar_backbone`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from based_jax.convert.layouts import Rules, flatten, rekeyed, to_tensors, under
from based_jax.convert.tables import block_rules, rules, rules_of
from based_jax.data.tasks import IGNORE
from based_jax.models import ModelConfig
from based_jax.typing import Params
from benchmarks.machine import cores
from benchmarks.models.mqar_workload import Workload
from benchmarks.ops.candidates import Program
from benchmarks.torch_reference import layers, taylor

LOGIT_ARRAYS = 4
"""Live float32 arrays of the logits' size at the peak of a step; measured, to skip cases that cannot fit."""


class BaseConv(nn.Module):
    """conv(x) * (x W + b) + x with a short causal convolution per channel."""

    def __init__(self, d_model: int, kernel_size: int):
        super().__init__()
        self.projection = nn.Linear(d_model, d_model)
        self.conv = nn.Conv1d(d_model, d_model, kernel_size, groups=d_model, padding=kernel_size - 1)

    def forward(self, x):
        conv = self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return conv * self.projection(x) + x


MIXERS: dict[str, tuple[Callable[[int, Any], nn.Module], Rules]] = {
    "attention": (
        lambda d_model, options: layers.Attention(d_model, 1, 0.0, None, bias=True),
        rules("authors", "attention"),
    ),
    "base_conv": (
        lambda d_model, options: BaseConv(d_model, options["kernel_size"]),
        rekeyed(rules("zoology", "base_conv"), lambda key: key.replace("conv.conv.", "conv.")),
    ),
    "linear_attention": (
        lambda d_model, options: layers.TaylorAttention(d_model, 1, options["feature_dim"], taylor.quadratic),
        rules("authors", "linear_attention"),
    ),
}
"""Registered name -> how it is built here, and how its parameters map to ours."""


class Block(nn.Module):
    """A mixer, and a second residual sum with only a norm instead of an MLP."""

    def __init__(self, d_model: int, mixer: nn.Module):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.mixer = mixer

    def forward(self, x):
        x = x + self.mixer(self.norm1(x))
        return x + self.norm2(x)


class Model(nn.Module):
    """Tokens to the final norm's output; the head is the embedding."""

    def __init__(self, config: ModelConfig, dropout: float):
        super().__init__()
        specs = [config.layer(index) for index in range(config.num_layers)]
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            Block(config.d_model, MIXERS[spec.mixer][0](config.d_model, spec.options)) for spec in specs
        )
        self.final_norm = nn.LayerNorm(config.d_model)
        self.rules = rules_of([["embedding.weight", "embedding", "same"]])
        self.rules += under(rules("authors", "norm"), "final_norm", "final_norm")
        for index, spec in enumerate(specs):
            self.rules += under(block_rules(MIXERS[spec.mixer][1]), f"layers.{index}", f"layers_{index}")

    def forward(self, tokens):
        x = self.dropout(self.embedding(tokens))
        for layer in self.layers:
            x = layer(x)
        return self.final_norm(x)

    def start(self, params: Params) -> "Model":
        """Copy JAX's parameters, leaves (1, ...)."""
        leaves = {path: leaf[0] for path, leaf in flatten(params["params"]).items()}
        tensors = to_tensors(self.rules, leaves)
        self.load_state_dict({key: torch.from_numpy(np.ascontiguousarray(x)) for key, x in tensors.items()})
        return self


def trainer(workload: Workload, dropout: float, everywhere: bool) -> Callable[[int], float]:
    """Return `step(index)`, which trains on batch `index` and returns its loss, in nats per label.

    Args:
        workload: what to train, beginning with its parameters.
        dropout: of the embeddings.
        everywhere: make the logits of all positions, as in the authors' code, not only of the labelled ones.
    """
    torch.set_num_threads(cores())
    torch.manual_seed(0)
    model = Model(workload.architecture, dropout).start(workload.start.params)
    head = model.embedding.weight
    optimizer = torch.optim.AdamW(
        model.parameters(), workload.rate, (0.9, 0.999), 1e-8, workload.recipe.weight_decay
    )
    batches = workload.part.batches
    inputs, positions, targets = (
        torch.from_numpy(array[0].astype(np.int64))
        for array in (batches.inputs, batches.positions, batches.targets)
    )
    labels = torch.full_like(inputs, IGNORE).scatter_(2, positions, targets)

    def step(index: int) -> float:
        optimizer.zero_grad()
        hidden, wanted = model(inputs[index]), labels[index]
        if not everywhere:
            hidden, wanted = torch.take_along_dim(hidden, positions[index][..., None], 1), targets[index]
        logits = (hidden @ head.T).flatten(0, 1)
        loss = F.cross_entropy(logits, wanted.flatten(), ignore_index=IGNORE)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def program(workload: Workload, everywhere: bool) -> Program:
    """Return the timed program: `steps` steps of one model."""
    recipe = workload.recipe
    step = trainer(workload, recipe.dropout, everywhere)
    positions = recipe.length if everywhere else recipe.pairs
    return Program(
        call=lambda: [step(index) for index in range(recipe.steps)],
        to_numpy=list,
        needed_bytes=LOGIT_ARRAYS * 4 * recipe.batch_size * positions * recipe.vocab_size,
    )


def losses(workload: Workload, everywhere: bool) -> list[float]:
    """Return the losses of the first `steps` steps without dropout, to compare with `Workload.losses`."""
    step = trainer(workload, 0.0, everywhere)
    return [step(index) for index in range(workload.recipe.steps)]
