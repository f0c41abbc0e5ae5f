"""Settings of a language-model run, and the model config that they describe."""

import dataclasses
from pathlib import Path
from typing import Annotated

import jax
import tyro

from based_jax.data.readers import ReadOptions
from based_jax.files import read_object
from based_jax.mixers.registry import expect_options
from based_jax.models import ModelConfig, presets
from based_jax.models.block import find_repeats
from based_jax.models.config import REMAT
from based_jax.training.devices.hosts import HostsConfig
from based_jax.training.named_options import parse_named
from based_jax.training.optimizer import OptimizerConfig
from based_jax.training.recipes import find_file
from based_jax.validate import UINT32_MAX, expect, expect_choice, expect_range, expect_ranges

DEFAULT_PRESET = "based-tiny"
"""Preset of a run that names none."""


@dataclasses.dataclass(frozen=True)
class LMConfig:
    """Train a decoder-only language model on text."""

    workdir: Path
    """directory for config, metrics, checkpoints and the final model"""
    recipe: str | None = None
    """TOML file of flags, e.g. recipes/based-360m-10b.toml; flags on the command line override it"""
    preset: str | None = None
    """based-tiny, attn-tiny, based-360m, ... (based_jax.presets.names()) or a JSON file; default: the
    architecture of --init-from, else based-tiny"""
    init_from: str | None = None
    """start from the weights of this run, pretrained directory or hub id, with a fresh optimizer"""
    lora: int | None = None
    """with --init-from: train only low-rank updates (LoRA) of this rank to the blocks' weight matrices; these
    have no weight decay, and one learning rate"""
    train_embeddings: bool = False
    """with --lora: also train the embedding and the head"""
    train_norms: bool = False
    """with --lora: also train the norms"""
    mixer: str | None = None
    """mixer to use instead of the preset's: mamba, hyena, ... (based_jax.mixers.names()), with options
    (based_jax.mixers.options(NAME)) as in mamba:d_state=32:expand=1"""
    mixer_layers: str | None = None
    """layers that get --mixer, counted from 0, e.g. 0,3; default: all"""
    data: str = "stdlib"
    """stdlib (Python's own source), a file, a directory, a glob, hf:NAME[:[CONFIG:]SPLIT], or tokens:DIR for
    the output of train tokenize; or a mixture by weight:
    tokens:pile=0.7,src/**=0.3"""
    include: str | None = None
    """also read these files as plain text, e.g. '*.rst,README'; '*' is every file"""
    reading: Annotated[ReadOptions, tyro.conf.arg(name="")] = ReadOptions()  # noqa: RUF009
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory;
    default: --init-from's, else byte"""
    steps: int = 1000
    """optimizer steps; with --resume, more steps extend the run"""
    batch_size: int = 16
    """sequences per step, over all devices and micro-batches"""
    length: int | None = None
    """tokens per sequence; default: the preset's context"""
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
    remat: str = "none"
    """activations to recompute in the backward pass, which saves memory and takes time: none, dots (all but
    products with weights) or block"""
    scan_layers: bool = False
    """run repeated layers as one loop; on a CPU, --remat saves memory only with it"""
    mesh: str | None = None
    """device mesh, e.g. data=2,fsdp=2 (axes data, fsdp, tensor, context); default: one device, or with
    several processes all devices on the data axis"""
    peak_tflops: float | None = None
    """peak TFLOP/s of one device, for the metric `mfu`; default: from a table of known devices"""
    dry_run: bool = False
    """read the data, draw the first batches, compile for --mesh on virtual devices, print what would stop the
    run, sharding and memory, and exit"""
    hosts: Annotated[HostsConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=HostsConfig)
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

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "batch_size", "length", "lora")
        divides = self.accumulate >= 1 and self.batch_size % self.accumulate == 0
        expect(divides, "accumulate", self.accumulate, f"a divisor of batch_size = {self.batch_size}")
        expect(0 < self.held_out < 1, "held_out", self.held_out, "above 0 and below 1")
        expect(self.held_out_bytes >= 1, "held_out_bytes", self.held_out_bytes, "at least 1")
        expect_range("seed", self.seed, 0, UINT32_MAX)
        has_weights = self.lora is None or self.init_from is not None
        expect(has_weights, "lora", self.lora, "--init-from to be given as well")
        for kind in self.also_trained:
            expected = "--lora to be given as well; without it everything is trained"
            expect(self.lora is not None, f"train_{kind}", True, expected)
        expect_choice("dtype", self.dtype, ("auto", "float32", "bfloat16"))
        expect_choice("remat", self.remat, REMAT)
        peak = self.peak_tflops
        expect(peak is None or peak > 0, "peak_tflops", peak, "above 0")
        are_numbers = all(layer.strip().isdigit() for layer in (self.mixer_layers or "0").split(","))
        expect(are_numbers, "mixer_layers", self.mixer_layers, "numbers of layers such as 0,3")
        alone = self.mixer is None and self.mixer_layers is not None
        expect(not alone, "mixer_layers", self.mixer_layers, "--mixer to be given as well")
        if self.mixer is not None:
            expect_options(*parse_named("mixer", self.mixer))

    @property
    def also_trained(self) -> tuple[str, ...]:
        """Return the kinds of parameters that `lora` trains besides its factors."""
        return tuple(kind for kind in ("embeddings", "norms") if getattr(self, f"train_{kind}"))


def model_config(config: LMConfig, vocab_size: int, pretrained: ModelConfig | None = None) -> ModelConfig:
    """Build the model config: the preset with the run's mixer and dtype and the tokenizer's vocabulary.

    Args:
        pretrained: architecture of the checkpoint that the run starts from; it is used where no preset is
            named, and its vocabulary is kept if it is large enough.

    Raises:
        ValueError: neither a preset nor a readable JSON file; a layer index out of range; `scan_layers` for
            a schedule without repetition.
    """
    if config.preset is None and pretrained is not None:
        model, vocab_size = pretrained, max(vocab_size, pretrained.vocab_size)
    else:
        model = find_preset(config.preset or DEFAULT_PRESET)
    if config.mixer is not None:
        layers = config.mixer_layers and [int(layer) for layer in config.mixer_layers.split(",")]
        name, options = parse_named("mixer", config.mixer)
        model = model.with_mixer(name, layers or None, **options)
    can_scan = not config.scan_layers or bool(find_repeats(model.schedule)[0])
    expected = f"False with the schedule {model.schedule}, which repeats nothing"
    expect(can_scan, "scan_layers", True, expected)
    sizes = {"vocab_size": vocab_size, "max_length": config.length or model.max_length}
    options = {"remat": config.remat, "scan_layers": config.scan_layers, "dtype": find_dtype(config.dtype)}
    found = model.replace(**sizes, **options)
    most = found.max_positions or found.max_length
    expected = f"at most {most}, the model's positions"
    expect(found.max_length <= most, "length", found.max_length, expected)
    return found


def find_preset(preset: str) -> ModelConfig:
    """Return a preset by its name, or the config in a JSON file."""
    if preset in presets.names():
        return presets.get(preset)
    path = find_file(preset)
    expect(path.is_file(), "preset", preset, f"a JSON file or one of {', '.join(presets.names())}")
    fields = read_object(path)
    try:
        return ModelConfig.from_dict(fields)
    except ValueError as error:
        raise ValueError(f"preset {path}: {error}") from error


def find_dtype(dtype: str) -> str:
    """Resolve "auto" to this machine's dtype; return any other name unchanged."""
    if dtype != "auto":
        return dtype
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
