"""Define a small Based and a Transformer++ of its size with their data, and training steps in JAX."""

import contextlib
import functools
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Variant:
    """A way to train the same model in JAX."""

    label: str
    model: Mapping[str, Any] = field(default_factory=dict)
    """changes of the `ModelConfig`"""
    logits: int | None = None
    """number of chunks in which the logits of a batch are made; None leaves that to the op"""


VARIANTS = {
    "jax": Variant("based_jax"),
    "jax_whole": Variant("based_jax, all logits at a time", logits=1),
    "jax_dots": Variant("based_jax, remat dots", {"remat": "dots"}),
    "jax_block": Variant("based_jax, remat block", {"remat": "block"}),
    "jax_scan": Variant("based_jax, scanned layers", {"scan_layers": True}),
    "jax_scan_dots": Variant("based_jax, scanned layers, remat dots", {"scan_layers": True, "remat": "dots"}),
    "jax_scan_block": Variant(
        "based_jax, scanned layers, remat block", {"scan_layers": True, "remat": "block"}
    ),
}


@dataclass(frozen=True)
class TorchForm:
    """A way to train the same model in torch."""

    label: str
    compiled: bool
    """by `torch.compile`"""
    in_chunks: bool = False
    """whether Taylor attention takes chunks, in time linear in the length; by default it is quadratic"""


TORCH = {
    "torch": TorchForm("torch", compiled=False),
    "torch_compile": TorchForm("torch.compile", compiled=True),
    "torch_chunks": TorchForm("torch, chunks", compiled=False, in_chunks=True),
    "torch_compile_chunks": TorchForm("torch.compile, chunks", compiled=True, in_chunks=True),
}

CHUNKS_FROM = 1024
"""Tokens per sequence from which Based is also trained by torch's chunked forms; they are slower before."""


def torch_forms(model: str, length: int) -> dict[str, TorchForm]:
    """Return the forms of torch that are compared for a model: chunks are of Based's Taylor attention."""
    has_chunks = model == "based" and length >= CHUNKS_FROM
    return {name: form for name, form in TORCH.items() if has_chunks or not form.in_chunks}


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

    @property
    def heads(self) -> int:
        """Heads of 64 channels."""
        return max(self.d_model // 64, 1)

    def architecture(self, model: str) -> ModelConfig:
        """Return Based with its three mixers twice, or Transformer++ with about as many parameters."""
        heads, width = self.heads, self.d_model
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

    def program(self, variant: Variant) -> Program:
        """Compile `steps` steps of `based_jax.training.step`, like the training command."""
        programs = self._programs(variant)
        with _logits_at_a_time(self._logits // variant.logits if variant.logits else None):
            program = compile_jitted(programs.train, list(self.first_arguments()), carried=0, result=0)
        calls = range(self.sizes.steps)
        return Program(
            call=lambda: [program.call() for _ in calls],
            to_numpy=list,
            compile_seconds=program.compile_seconds,
            temp_bytes=program.temp_bytes,
            needed_bytes=program.needed_bytes,
        )

    def first_arguments(self) -> tuple[TrainState, Batch]:
        """Return state and batch of the first step, on the device: training takes the state's buffers."""
        return self._start(), self._batch(0)

    @functools.cached_property
    def start(self) -> TrainState:
        """Return the state before the first step, NumPy arrays."""
        return jax.tree.map(np.array, self._programs(VARIANTS["jax"]).init(jax.random.key(SEED)))

    @functools.cached_property
    def losses(self) -> list[float]:
        """Return the losses (nats per token) of the first `steps` steps."""
        train, state, losses = self._programs(VARIANTS["jax"]).train, self._start(), []
        for step in range(self.sizes.steps):
            state, metrics = train(state, self._batch(step))
            losses.append(float(metrics["loss"]))
        return losses

    @property
    def _logits(self) -> int:
        return self.sizes.batch_size * self.sizes.length * self.architecture.padded_vocab_size

    def _start(self) -> TrainState:
        return jax.tree.map(jax.numpy.array, self.start)

    def _batch(self, index: int) -> Batch:
        return {name: jax.numpy.asarray(array[index]) for name, array in self.batches.items()}

    def _programs(self, variant: Variant) -> Programs:
        return build_programs(
            LanguageModel(self.architecture.replace(**variant.model)),
            make_optimizer(self.optimizer, 1),
            learning_rate_schedule(self.optimizer, 1),
        )


@contextlib.contextmanager
def _logits_at_a_time(count: int | None) -> Iterator[None]:
    """Limit the logits that programs traced inside make at once; None is the op's own limit."""
    module: Any = importlib.import_module("based_jax.ops.cross_entropy")
    before = module.LOGITS
    module.LOGITS = before if count is None else dict.fromkeys(before, count)
    try:
        yield
    finally:
        module.LOGITS = before
