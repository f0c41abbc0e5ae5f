"""What a language model's training run is given: its settings, and the model that they describe."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import jax
import tyro

from based_jax import mixers
from based_jax.models import ModelConfig, presets
from based_jax.models.config import REMAT
from based_jax.models.scan import find_repeats
from based_jax.validate import expect, expect_choice
from train.bad_loss import BadLossConfig
from train.hosts import HostsConfig
from train.optimizer import OptimizerConfig

DEFAULT_PRESET = "based-tiny"


@dataclasses.dataclass(frozen=True)
class LMConfig:
    """Train a decoder-only language model on text."""

    workdir: Path
    """run directory: config, metrics, checkpoints, final model"""
    recipe: str | None = None
    """take flags from this file, e.g. recipes/based-360m-10b.toml; those on the command line win"""
    preset: str | None = None
    """model: based-tiny, attn-tiny, based-360m, ... (based_jax.presets.names()), or a JSON file of one;
    default: that of --init-from, else based-tiny"""
    init_from: str | None = None
    """begin with the weights of this pretrained directory, finished run or hub id, and a fresh optimizer"""
    mixer: str | None = None
    """put this mixer in place of the preset's: mamba, hyena, ... (based_jax.mixers.names())"""
    mixer_layers: str | None = None
    """layers that get --mixer, counted from 0, e.g. 0,3; default: all"""
    data: str = "stdlib"
    """stdlib (Python's own source), a file, a directory, a glob, or hf:NAME"""
    include: str | None = None
    """read these files of --data too, whatever their suffix, e.g. '*.rst,README'; '*' is all that is UTF-8"""
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), or a tokenizers JSON file; default: that of --init-from, else
    byte"""
    steps: int = 1000
    """optimizer steps; with --resume more than before go on where the run ended"""
    batch_size: int = 16
    """sequences per step, over all devices and micro-batches"""
    length: int | None = None
    """tokens per sequence; default: the preset's context"""
    accumulate: int = 1
    """micro-batches per step whose gradients are summed"""
    seed: int = 1111
    """of the initialisation, of the data order and of the noise in training"""
    optimizer: Annotated[OptimizerConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=OptimizerConfig
    )
    cross_documents: bool = False
    """let windows see across document boundaries, as the authors did; default: documents are kept apart"""
    held_out: float = 0.02
    """share of the documents that is held out for evaluation"""
    held_out_bytes: int = 262144
    """at most so many bytes of held-out text are evaluated"""
    held_out_names: str | None = None
    """hold out these files or FASTA records, e.g. chr8,chr9, instead of a share"""
    dtype: str = "auto"
    """of the computation: float32, bfloat16, or auto (bfloat16 on a GPU or TPU); parameters are float32"""
    remat: str = "none"
    """recompute in the backward pass instead of keeping: none, dots (all but products with weights) or block
    (all inside each block); less memory, more time"""
    scan_layers: bool = False
    """run layers that repeat in the schedule as one loop; with --remat the way to little memory on a CPU"""
    mesh: str | None = None
    """devices, e.g. data=2,fsdp=2 (axes data, fsdp, tensor, context); default: one device, or data over those
    of several processes"""
    peak_tflops: float | None = None
    """10^12 operations a second of one device, for `mfu`; default: by its kind, if it is a known one"""
    print_sharding: bool = False
    """print what each device holds before training"""
    dry_run: bool = False
    """compile the step for --mesh on virtual devices, print memory and traffic per device, and end"""
    hosts: Annotated[HostsConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=HostsConfig)
    bad_losses: Annotated[BadLossConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=BadLossConfig
    )
    log_every: int = 10
    """steps between log lines"""
    eval_every: int = 200
    """steps between evaluations on the held-out text; 0 is never"""
    checkpoint_every: int = 200
    """steps between checkpoints; 0 is at the end only"""
    keep: int = 3
    """checkpoints to keep"""
    resume: bool = False
    """continue the run in workdir (all other settings are taken from it)"""

    def __post_init__(self) -> None:
        expect(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        expect(
            self.accumulate >= 1 and self.batch_size % self.accumulate == 0,
            "accumulate", self.accumulate, f"a divisor of batch_size = {self.batch_size}",
        )  # fmt: skip
        expect(self.length is None or self.length >= 1, "length", self.length, "at least 1")
        expect(0 < self.held_out < 1, "held_out", self.held_out, "above 0 and below 1")
        expect(self.held_out_bytes >= 1, "held_out_bytes", self.held_out_bytes, "at least 1")
        expect(self.seed >= 0, "seed", self.seed, "at least 0")
        expect_choice("dtype", self.dtype, ("auto", "float32", "bfloat16"))
        expect_choice("remat", self.remat, REMAT)
        peak = self.peak_tflops
        expect(peak is None or peak > 0, "peak_tflops", peak, "above 0")
        if self.mixer is not None:
            expect_choice("mixer", self.mixer, mixers.names())
        layers = (self.mixer_layers or "0").split(",")
        expect(
            all(layer.strip().isdigit() for layer in layers),
            "mixer_layers", self.mixer_layers, "numbers of layers such as 0,3",
        )  # fmt: skip
        alone = self.mixer is None and self.mixer_layers is not None
        expect(not alone, "mixer_layers", self.mixer_layers, "--mixer beside it")


def model_config(config: LMConfig, vocab_size: int, pretrained: ModelConfig | None = None) -> ModelConfig:
    """The preset (or JSON file) with the run's mixer, the tokenizer's vocabulary and the run's dtype.

    Args:
        config: the run's settings.
        vocab_size: of the tokenizer.
        pretrained: architecture of the checkpoint that the run begins with; it stands for the preset where
            none is named, and its vocabulary stays where it is large enough.

    Raises:
        ValueError: neither a preset nor a readable JSON file; a layer that it does not have; layers to scan
            where none repeat.
    """
    if config.preset is None and pretrained is not None:
        model, vocab_size = pretrained, max(vocab_size, pretrained.vocab_size)
    else:
        model = find_preset(config.preset or DEFAULT_PRESET)
    if config.mixer is not None:
        layers = config.mixer_layers and [int(layer) for layer in config.mixer_layers.split(",")]
        model = model.with_mixer(config.mixer, layers or None)
    repeats = not config.scan_layers or find_repeats(model.schedule)[0]
    expect(
        bool(repeats), "scan_layers", True, f"False with the schedule {model.schedule}, which repeats nothing"
    )
    return model.replace(
        vocab_size=vocab_size,
        dtype=find_dtype(config.dtype),
        remat=config.remat,
        scan_layers=config.scan_layers,
        max_length=config.length or model.max_length,
    )


def find_preset(preset: str) -> ModelConfig:
    """A preset by its name, or the config in a JSON file.

    Raises:
        ValueError: neither.
    """
    if preset in presets.names():
        return presets.get(preset)
    path = Path(preset)
    expect(path.is_file(), "preset", preset, f"a JSON file or one of {', '.join(presets.names())}")
    try:
        return ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise ValueError(f"preset = {preset!r}: not valid JSON: {error}") from error


def find_dtype(dtype: str) -> str:
    """What "auto" stands for on this machine; any other name is itself."""
    if dtype != "auto":
        return dtype
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
