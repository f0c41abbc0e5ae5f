"""Settings that all runs on text have: data, steps, optimizer, evaluation and checkpoints."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from based_jax.data.readers import ReadOptions
from based_jax.training.devices.hosts import HostsConfig
from based_jax.training.optimizer import OptimizerConfig
from based_jax.validate import UINT32_MAX, expect, expect_choice, expect_range, expect_ranges

MAY_CHANGE = {
    *("workdir", "resume", "steps", "keep", "mesh", "hosts"),
    *("log_every", "eval_every", "checkpoint_every"),
}
"""Settings that may change on resuming; all others affect the losses. The number of steps may grow, since the
schedule stays the same up to the old end."""


@dataclasses.dataclass(frozen=True)
class TextRunConfig:
    """A training run on text, from files, the hub or token shards."""

    workdir: Path
    """directory for config, metrics, checkpoints and the final model"""
    data: str = "stdlib"
    """stdlib (Python's own source), a file, a directory, a glob, hf:NAME[:[CONFIG:]SPLIT], or tokens:DIR for
    the output of train tokenize; or a mixture by weight:
    tokens:pile=0.7,src/**=0.3"""
    include: str | None = None
    """also read these files as plain text, e.g. '*.rst,README'; '*' is every file"""
    reading: Annotated[ReadOptions, tyro.conf.arg(name="")] = ReadOptions()  # noqa: RUF009
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory; default: that of the
    checkpoint, else byte"""
    steps: int = 1000
    """optimizer steps; with --resume, more steps extend the run"""
    batch_size: int = 16
    """sequences per step, over all devices and micro-batches"""
    length: int | None = None
    """tokens per sequence; default: the model's context"""
    accumulate: int = 1
    """micro-batches per step whose gradients are summed"""
    seed: int = 1111
    """random seed of the initialisation, the data order and the noise in training"""
    optimizer: Annotated[OptimizerConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=OptimizerConfig
    )
    cross_documents: bool = False
    """let tokens see earlier documents in their window, as the authors did"""
    held_out: float = 0.02
    """share of the documents to hold out for evaluation"""
    held_out_bytes: int = 262144
    """maximum bytes of held-out text to evaluate"""
    held_out_names: str | None = None
    """hold out these files or FASTA records instead, e.g. chr8,chr9"""
    dtype: str = "auto"
    """compute dtype: float32, bfloat16 or auto (bfloat16 on a GPU or TPU)"""
    mesh: str | None = None
    """device mesh, e.g. data=2,fsdp=2 (axes data, fsdp, tensor, context); default: one device, or with
    several processes all devices on the data axis"""
    log_every: int = 10
    """steps between log lines"""
    eval_every: int = 200
    """steps between evaluations on held-out text; 0: never"""
    checkpoint_every: int = 200
    """steps between checkpoints; 0: only at the end"""
    keep: int = 3
    """checkpoints to keep"""
    resume: bool = False
    """continue the run in --workdir, with its settings"""
    hosts: Annotated[HostsConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=HostsConfig)

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "batch_size", "length")
        divides = self.accumulate >= 1 and self.batch_size % self.accumulate == 0
        expect(divides, "accumulate", self.accumulate, f"a divisor of batch_size = {self.batch_size}")
        expect(0 < self.held_out < 1, "held_out", self.held_out, "above 0 and below 1")
        expect(self.held_out_bytes >= 1, "held_out_bytes", self.held_out_bytes, "at least 1")
        expect_range("seed", self.seed, 0, UINT32_MAX)
        expect_choice("dtype", self.dtype, ("auto", "float32", "bfloat16"))
