"""Define a small Based and a Transformer++ of its size with their data, and training steps in JAX."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from based_jax.models import LanguageModel, MixerSpec, ModelConfig
from based_jax.ops.softmax_attention import left_from_paper_window
from based_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from based_jax.training.step import Batch, Programs, TrainState, build_programs
from benchmarks.ops.candidates import Program, compile_jitted

SEED = 0
"""Seed of the data and the initialisation."""

WINDOW = 64
"""Keys of Based's sliding windows."""


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "jax": ("based_jax", {}),
    "jax_dots": ("based_jax, remat dots", {"remat": "dots"}),
    "jax_block": ("based_jax, remat block", {"remat": "block"}),
    "jax_scan": ("based_jax, scanned layers", {"scan_layers": True}),
    "jax_scan_dots": ("based_jax, scanned layers, remat dots", {"scan_layers": True, "remat": "dots"}),
    "jax_scan_block": ("based_jax, scanned layers, remat block", {"scan_layers": True, "remat": "block"}),
}
"""Ways to train the same model in JAX: label, and changes of the `ModelConfig`."""


TORCH = {"torch": ("torch", False), "torch_compile": ("torch.compile", True)}
"""Ways to train the Transformer++ in torch: label, and whether it goes through `torch.compile`."""


@dataclass(frozen=True)
class Sizes:
    """Model, data and training: about five million parameters by default."""

    d_model: int = 256
    """Width of the models; heads have 64 channels."""
    vocab_size: int = 4096
    """Tokens of the vocabulary."""
    length: int = 512
    """Tokens per sequence."""
    batch_size: int = 8
    """Sequences per step."""
    steps: int = 2
    """Training steps per timed call."""

    def architecture(self, model: str) -> ModelConfig:
        """Return Based with its three mixers twice, or Transformer++ with about as many parameters."""
        heads, width = self.d_model // 64, self.d_model
        if model == "based":
            specs = {
                "C": MixerSpec("gated_conv", {"expand": 4, "kernel_size": 3}),
                "L": MixerSpec("linear_attention", {"num_heads": heads, "feature_dim": 16}),
                "S": MixerSpec(
                    "sliding_window", {"num_heads": heads, "left": left_from_paper_window(WINDOW)}
                ),
            }
            return ModelConfig(self.vocab_size, width, "CLSCLS", specs, mlp_hidden=2 * width)
        specs = {"A": MixerSpec("attention", {"num_heads": heads, "rotary_fraction": 0.5})}
        return ModelConfig(self.vocab_size, width, "A" * 5, specs, mlp_hidden=11 * width // 4)


class Workload:
    """The training that every candidate of one model runs."""

    optimizer = OptimizerConfig(learning_rate=1e-3, warmup=0.0, final_learning_rate_share=1.0)

    def __init__(self, sizes: Sizes, model: str):
        self.sizes = sizes
        self.architecture = sizes.architecture(model)
        shape = (sizes.steps, sizes.batch_size, sizes.length + 1)
        tokens = np.random.default_rng(SEED).integers(0, sizes.vocab_size, shape, np.int32)
        self.batches = {"inputs": tokens[..., :-1], "targets": tokens[..., 1:]}

    def program(self, changes: Mapping[str, Any]) -> Program:
        """Compile `steps` steps of `based_jax.training.step`, like the training command."""
        program = compile_jitted(
            self._programs(changes).train, [self._start(), self._batch(0)], carried=0, result=0
        )
        return replace(program, call=lambda: [program.call() for _ in range(self.sizes.steps)])

    @functools.cached_property
    def start(self) -> TrainState:
        """Return the state before the first step, NumPy arrays."""
        return jax.tree.map(np.array, self._programs({}).init(jax.random.key(SEED)))

    @functools.cached_property
    def losses(self) -> list[float]:
        """Return the losses (nats per token) of the first `steps` steps."""
        train, state, losses = self._programs({}).train, self._start(), []
        for step in range(self.sizes.steps):
            state, metrics = train(state, self._batch(step))
            losses.append(float(metrics["loss"]))
        return losses

    def _start(self) -> TrainState:
        """Return the first state on the device, copied: training takes its buffers."""
        return jax.tree.map(jax.numpy.array, self.start)

    def _batch(self, index: int) -> Batch:
        return {name: jax.numpy.asarray(array[index]) for name, array in self.batches.items()}

    def _programs(self, changes: Mapping[str, Any]) -> Programs:
        return build_programs(
            LanguageModel(self.architecture.replace(**changes)),
            make_optimizer(self.optimizer, 1),
            learning_rate_schedule(self.optimizer, 1),
        )
