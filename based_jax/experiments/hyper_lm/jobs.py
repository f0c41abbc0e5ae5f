"""The grid: every contender of both benchmarks, by learning rate and seed, as lines of `train.lm`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from based_jax.experiments.hyper_lm.contenders import BENCHMARKS, Benchmark, Contender, model
from based_jax.experiments.job import Job
from based_jax.models import ModelConfig

TRAINER = (sys.executable, "-m", "train.lm")
MODELS = "models"
"""Folder of a study's directory with the models as JSON files, which the trainer takes."""


@dataclass(frozen=True)
class Scale:
    """How large the models are, and how they are trained: all of a benchmark on the same batches."""

    about: str
    """in a sentence"""
    d_model: int
    vocab_size: int
    lengths: Mapping[str, int]
    """tokens of a window, by benchmark"""
    tokens_per_step: int
    steps: int
    learning_rate: float
    """its peak, the same for all models"""
    flags: Mapping[str, Any]
    """further flags of the trainer"""
    swept: Sequence[float] = ()
    """other learning rates, which every model is also trained with, with the first seed"""
    seeds: Sequence[int] = (0,)

    @property
    def runs(self) -> list[tuple[float, int]]:
        """Learning rates and seeds of a model."""
        first, *_ = self.seeds
        return [(self.learning_rate, seed) for seed in self.seeds] + [(rate, first) for rate in self.swept]


SCALES = {
    "smoke": Scale(
        about="Not a result, a check that everything runs: bytes of Python's standard library, 8 steps",
        d_model=24,
        vocab_size=257,
        lengths={"A": 16, "B": 32},
        tokens_per_step=128,
        steps=8,
        learning_rate=2e-3,
        flags={"warmup": 0.1, "held-out-bytes": 2048, "eval-every": 8, "checkpoint-every": 0, "log-every": 1},
    ),
    "cpu": Scale(
        about="A small version: d 48, windows of 64 (A) and 128 (B) bytes of Python's source, 768,000 in all",
        d_model=48,
        vocab_size=257,
        lengths={"A": 64, "B": 128},
        tokens_per_step=256,
        steps=3000,
        learning_rate=1e-2,
        swept=(3e-3,),
        flags={
            "warmup": 0.1, "held-out-bytes": 32768, "eval-every": 500, "checkpoint-every": 500,
            "log-every": 1,
        },
    ),
    "paper": Scale(
        about="The paper's size: d 768, windows of 256 (A) and 1024 (B) tokens of OpenWebText",
        d_model=768,
        vocab_size=50257,
        lengths={"A": 256, "B": 1024},
        tokens_per_step=163_840,
        steps=28_000,
        learning_rate=6e-4,
        seeds=(1111,),
        flags={
            "data": "hf:openwebtext", "tokenizer": "gpt2", "cross-documents": True, "dtype": "bfloat16",
            "warmup": 0.08, "held-out": 0.0005, "held-out-bytes": 4_194_304, "eval-every": 1000,
            "checkpoint-every": 1000,
        },
    ),
}  # fmt: skip
"""The paper prints the width, the vocabulary, the windows, 28k steps of 0.16 M tokens, and a cosine with
warm-up from 6e-4 to 6e-5. Not printed: 640 x 256 and 160 x 1024 tokens a step, and what is GPT-3's here, a
warm-up of 375 M tokens, AdamW with 0.9, 0.95 and a weight decay of 0.1, clipping at 1. The trainer's defaults
are the same but for the rate and the warm-up."""


@dataclass(frozen=True)
class LMJob(Job):
    """One model to train, once; `model` is the key of its contender."""

    @property
    def arguments(self) -> list[str]:
        """Flags of the trainer, without the run directory; the file is named from the study's directory."""
        return ["--preset", f"{MODELS}/{self.model}.json", *super().arguments[2:]]

    def command(self, workdir: Path, trainer: Sequence[str] = TRAINER) -> list[str]:
        """The process's words; one that was stopped is continued."""
        if any((workdir / "checkpoints").glob("[0-9]*")):
            return [*trainer, "--resume", "--workdir", str(workdir)]
        file = workdir.parents[1] / MODELS / f"{self.model}.json"
        return [*trainer, "--preset", str(file), *self.arguments[2:], "--workdir", str(workdir)]

    @property
    def line(self) -> str:
        """As one would type it in the study's directory."""
        return " ".join(["python", *TRAINER[1:], *self.arguments])


def models(scale: Scale) -> dict[str, ModelConfig]:
    """Every contender's model by its key."""
    return {
        contender.key: model(
            benchmark, contender, scale.d_model, scale.lengths[benchmark.name], scale.vocab_size
        )
        for benchmark in BENCHMARKS
        for contender in benchmark.contenders
    }


def jobs(scale: Scale) -> list[LMJob]:
    """The grid, seed by seed, so that an early look sees every model."""
    return [
        _job(scale, benchmark, contender, rate, seed)
        for rate, seed in scale.runs
        for benchmark in BENCHMARKS
        for contender in benchmark.contenders
    ]


def _job(scale: Scale, benchmark: Benchmark, contender: Contender, rate: float, seed: int) -> LMJob:
    length = scale.lengths[benchmark.name]
    flags = {
        "steps": scale.steps, "batch-size": scale.tokens_per_step // length, "length": length,
        "learning-rate": rate, **scale.flags, "seed": seed,
    }  # fmt: skip
    if benchmark.layers > 1:
        flags["scan-layers"] = True  # the same numbers, and one layer to compile
    facts = {
        "benchmark": benchmark.name, "model": contender.key, "learning_rate": rate, "seed": seed,
        "published": contender.perplexity,
    }  # fmt: skip
    setting = f"{benchmark.name}, learning rate {rate:g}, seed {seed}"
    return LMJob(contender.family, setting, contender.key, flags, facts)
