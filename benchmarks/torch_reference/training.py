"""Implement the step of `based_jax.training.step` in torch: cross-entropy, clipping, AdamW, same groups."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from based_jax.training.optimizer import OptimizerConfig
from benchmarks.machine import cores


def make_step(
    model: nn.Module, config: OptimizerConfig, batches: Mapping[str, np.ndarray], compiled: bool
) -> Callable[[int], float]:
    """Return `step(index)`: train on batch `index` at the peak learning rate; return nats per token.

    Args:
        model: tokens (B, N) to logits (B, N, vocabulary).
        config: optimizer settings; no warm-up and no decay of the rate.
        batches: inputs and targets (batches, B, N).
        compiled: whether the model goes through `torch.compile`.

    On a GPU products are in bfloat16 (autocast).
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
