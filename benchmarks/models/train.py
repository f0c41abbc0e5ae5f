"""`train`: measure tokens per second in training a small Based and a Transformer++, in JAX and in torch."""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from based_jax.models import LanguageModel, MixerSpec, ModelConfig, param_count
from based_jax.ops.softmax_attention import left_from_paper_window
from based_jax.training.devices.host_memory import keep_freed_memory
from based_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from based_jax.training.step import Batch, Programs, TrainState, build_programs
from based_jax.validate import expect_divisible
from benchmarks.flags import Names
from benchmarks.models import training
from benchmarks.study import Candidate, Flags, Program, compile_jitted, without_torch

SEED = 0
"""Seed of the data and the initialisation."""

WINDOW = 64
"""Keys of Based's sliding windows."""

LOGIT_ARRAYS = 4
"""Live float32 arrays of the logits' size at the peak of a step in torch, to skip what cannot fit."""

MODELS = ("based", "transformer")

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
class Train(Flags):
    """Training throughput and memory of small language models, on CPU in float32.

    Whole steps of `based-jax train lm` (loss, gradients, clipping, AdamW) on random tokens, with its ways to
    save memory, and the Transformer++ in torch, if that is installed. All candidates of a model take turns.
    JAX and torch have to compute the same losses from the same parameters, or the exit status is 1.
    """

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
    models: Names = MODELS
    """based, transformer, or both."""
    variants: Names = tuple(VARIANTS)
    """Ways to train in JAX."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, 1 if JAX and torch disagree, 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or JAX does not compute on one CPU.
        """
        keep_freed_memory()
        sizes = ("d_model", "vocab_size", "length", "batch_size", "steps")
        self.check(*sizes, models=MODELS, variants=tuple(VARIANTS))
        training.expect_one_cpu()
        expect_divisible("--length", self.length, "the keys of a window", WINDOW)
        expect_divisible("--d-model", self.d_model, "the channels of a head", 64)
        workloads = {name: Workload(self, name) for name in self.models}
        models = {
            name: {"schedule": work.architecture.schedule, "parameters": param_count(work.architecture)}
            for name, work in workloads.items()
        }
        settings = {**{name: getattr(self, name) for name in sizes}, "models": models}
        tokens = self.batch_size * self.length

        def quantities(row: dict[str, Any]) -> dict[str, Any]:
            return {"tokens_per_second": row["step_seconds"] and tokens / row["step_seconds"]}

        return training.run(self, training.TRAIN, settings, workloads, quantities, command)

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
    """The training that every candidate of one model runs: a call makes `steps` steps."""

    optimizer = OptimizerConfig(learning_rate=1e-3, warmup=0.0, final_learning_rate_share=1.0)

    def __init__(self, flags: Train, model: str):
        self.flags, self.model = flags, model
        self.architecture = flags.architecture(model)
        shape = (flags.steps, flags.batch_size, flags.length + 1)
        tokens = np.random.default_rng(SEED).integers(0, flags.vocab_size, shape, np.int32)
        self.batches = {"inputs": tokens[..., :-1], "targets": tokens[..., 1:]}

    def candidates(self) -> list[Candidate]:
        """List the variants in JAX, and for the Transformer++ those in torch."""

        def in_jax(changes: Mapping[str, Any], *_: Any) -> Program:
            arguments = [self._start(), self._batch(0)]
            program = compile_jitted(self._programs(changes).train, arguments, carried=0, result=0)
            return replace(program, call=lambda: [program.call() for _ in range(self.flags.steps)])

        def in_torch(compiled: bool, *_: Any) -> Program:
            step, flags = self._torch_step(compiled), self.flags
            begin = time.perf_counter()
            if compiled:
                step(0)  # which compiles
            logits = flags.batch_size * flags.length * self.architecture.padded_vocab_size
            return Program(
                lambda: [step(index) for index in range(flags.steps)],
                compile_seconds=time.perf_counter() - begin if compiled else None,
                needed_bytes=4 * LOGIT_ARRAYS * logits,
            )

        lacks = without_torch((training.STEP,))
        torch = TORCH if self.model == "transformer" else {}
        return [
            *(
                Candidate(name, VARIANTS[name][0], "jax", functools.partial(in_jax, VARIANTS[name][1]))
                for name in self.flags.variants
            ),
            *(
                Candidate(name, label, "torch", functools.partial(in_torch, compiled), lacks=lacks)
                for name, (label, compiled) in torch.items()
            ),
        ]

    @functools.cached_property
    def start(self) -> TrainState:
        """Return the state before the first step, NumPy arrays."""
        return jax.tree.map(np.array, self._programs({}).init(jax.random.key(SEED)))

    @functools.cached_property
    def losses(self) -> list[float]:
        """Return the losses (nats per token) of the first `steps` steps."""
        train, state, losses = self._programs({}).train, self._start(), []
        for step in range(self.flags.steps):
            state, metrics = train(state, self._batch(step))
            losses.append(float(metrics["loss"]))
        return losses

    def torch_losses(self, candidate: str) -> list[float]:
        """Return those of a candidate in torch."""
        step = self._torch_step(TORCH[candidate][1])
        return [step(index) for index in range(self.flags.steps)]

    def _torch_step(self, compiled: bool) -> Callable[[int], float]:
        from benchmarks.torch_reference.transformer import LanguageModel, make_step

        model = LanguageModel(self.architecture).start(self.start.params)
        return make_step(model, self.optimizer, self.batches, compiled)

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
