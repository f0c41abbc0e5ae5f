"""Define the grid: every contender of both benchmarks, by learning rate and seed, as lines of `train lm`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from based_jax.experiments.job import Job
from based_jax.models import ModelConfig
from papers.hyper_self_attention.hyper_lm.contenders import BENCHMARKS, Benchmark, Contender, model, swept

TRAINER = (sys.executable, "-m", "based_jax", "train", "lm")
MODELS = "models"
"""Folder of a study's directory with the models as JSON files for the trainer."""


@dataclass(frozen=True)
class Scale:
    """The models' size and training; all models of a benchmark see the same batches."""

    about: str  # description, one sentence
    d_model: int
    vocab_size: int
    lengths: Mapping[str, int]  # tokens of a window, by benchmark
    tokens_per_step: int
    steps: int
    learning_rate: float  # its peak, the same for all models
    flags: Mapping[str, Any]  # further flags of the trainer
    linear: bool = True  # whether the mixers that no table of the paper has are trained
    times: Sequence[float] = ()  # multiples of SA's and HFA's scale, in benchmark A
    seeds: Sequence[int] = (0,)

    def contenders(self, benchmark: Benchmark) -> list[Contender]:
        """Return the models of a benchmark: those of the paper's table, linear ones, other scales."""
        linear = benchmark.linear if self.linear else ()
        scales = swept(benchmark, self.times) if benchmark.layers == 1 else ()
        return [*benchmark.contenders, *linear, *scales]


def _often(eval_every: int, checkpoint_every: int) -> dict[str, int]:
    return {"eval-every": eval_every, "checkpoint-every": checkpoint_every}


# Shards that were written with --held-out 0.0005 --held-out-bytes 4194304, see the recipes.
_TEXT = {"data": "tokens:data/openwebtext", "tokenizer": "gpt2", "cross-documents": True, "dtype": "bfloat16"}

SCALES = {
    "smoke": Scale(
        "Not a result, a check that everything runs: bytes of Python's standard library, 8 steps",
        d_model=24,
        vocab_size=257,
        lengths={"A": 16, "B": 32},
        tokens_per_step=128,
        steps=8,
        learning_rate=2e-3,
        flags={"warmup": 0.1, "held-out-bytes": 2048, **_often(8, 0), "log-every": 1},
    ),
    "cpu": Scale(
        "A small version: d 48, windows of 32 (A) and 64 (B) bytes of Python's source, 384,000 in all",
        d_model=48,
        vocab_size=257,
        lengths={"A": 32, "B": 64},
        tokens_per_step=256,
        steps=1500,
        learning_rate=5e-3,
        times=(2, 4, 8),
        seeds=(0, 1, 2),
        flags={"warmup": 0.1, "held-out-bytes": 32768, **_often(1500, 500), "log-every": 1},
    ),
    "paper": Scale(
        "The paper's size: d 768, windows of 256 (A) and 1024 (B) tokens of OpenWebText",
        d_model=768,
        vocab_size=50257,
        lengths={"A": 256, "B": 1024},
        tokens_per_step=163_840,
        steps=28_000,
        learning_rate=6e-4,
        linear=False,
        seeds=(1111,),
        flags={**_TEXT, "warmup": 0.08, **_often(1000, 1000)},
    ),
}
"""From the paper: the width, the vocabulary, the windows, 28k steps of 0.16 M tokens, and a cosine with
warm-up from 6e-4 to 6e-5. Not in the paper: 640 x 256 and 160 x 1024 tokens per step, and the values taken
from GPT-3: a warm-up of 375 M tokens, AdamW with 0.9, 0.95 and a weight decay of 0.1, clipping at 1. These
are the trainer's defaults except for the rate and the warm-up."""


@dataclass(frozen=True)
class LMJob(Job):
    """One model to train, once, in the study's directory; `model` is the key of its contender."""

    trainer = TRAINER

    @property
    def arguments(self) -> list[str]:
        """Flags of the trainer, without the run directory; the file's path is relative to the study's."""
        return ["--preset", f"{MODELS}/{self.model}.json", *super().arguments[2:]]

    def command(self, workdir: Path, trainer: Sequence[str] | None = None) -> list[str]:
        """Return the process's command line; a stopped run is resumed."""
        trainer = trainer or self.trainer
        if any((workdir / "checkpoints").glob("[0-9]*")):
            return [*trainer, "--resume", "--workdir", str(workdir)]
        file = workdir.parents[1] / MODELS / f"{self.model}.json"
        return [*trainer, "--preset", str(file), *self.arguments[2:], "--workdir", str(workdir)]


def models(scale: Scale) -> dict[str, ModelConfig]:
    """Return every contender's model by its key."""
    return {
        one.key: model(part, one, scale.d_model, scale.lengths[part.name], scale.vocab_size)
        for part in BENCHMARKS
        for one in scale.contenders(part)
    }


def jobs(scale: Scale) -> list[LMJob]:
    """Return the grid so that partial results compare models: A first, seed by seed, other scales last."""
    chosen = [
        (benchmark, seed, contender)
        for benchmark in BENCHMARKS
        for seed in scale.seeds
        for contender in scale.contenders(benchmark)
    ]
    chosen.sort(key=lambda one: (one[0].name, one[2].times != 1))
    return [_job(scale, benchmark, contender, seed) for benchmark, seed, contender in chosen]


def _job(scale: Scale, benchmark: Benchmark, contender: Contender, seed: int) -> LMJob:
    rate = scale.learning_rate
    length = scale.lengths[benchmark.name]
    batch = {"batch-size": scale.tokens_per_step // length, "length": length}
    flags = {"steps": scale.steps, **batch, "learning-rate": rate, **scale.flags, "seed": seed}
    if benchmark.layers > 1:
        flags["scan-layers"] = True  # the same numbers, and one layer to compile
    facts = {"benchmark": benchmark.name, "model": contender.key, "learning_rate": rate, "seed": seed}
    facts |= {"times": contender.times, "published": contender.perplexity}
    setting = f"{benchmark.name}, learning rate {rate:g}, seed {seed}"
    return LMJob(contender.family, setting, contender.key, flags, facts)
