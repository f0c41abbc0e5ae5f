"""Settings of a language-model run, and the model config that they describe."""

import dataclasses

import jax

from based_jax.mixers.registry import expect_options
from based_jax.models import ModelConfig, presets
from based_jax.models.block import find_repeats
from based_jax.models.config import REMAT
from based_jax.training.named_options import parse_layers, parse_named
from based_jax.training.text_run import TextRunConfig
from based_jax.validate import expect, expect_choice, expect_ranges

DEFAULT_PRESET = "based-tiny"
"""Preset of a run that names none."""


@dataclasses.dataclass(frozen=True)
class LMConfig(TextRunConfig):
    """Train a decoder-only language model on text."""

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
    remat: str = "none"
    """activations to recompute in the backward pass, which saves memory and takes time: none, dots (all but
    products with weights) or block"""
    scan_layers: bool = False
    """run repeated layers as one loop; on a CPU, --remat saves memory only with it"""
    peak_tflops: float | None = None
    """peak TFLOP/s of one device, for the metric `mfu`; default: from a table of known devices"""
    dry_run: bool = False
    """read the data, draw the first batches, compile for --mesh on virtual devices, print what would stop the
    run, sharding and memory, and exit"""

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, 1, "lora")
        has_weights = self.lora is None or self.init_from is not None
        expect(has_weights, "lora", self.lora, "--init-from to be given as well")
        for kind in self.also_trained:
            expected = "--lora to be given as well; without it everything is trained"
            expect(self.lora is not None, f"train_{kind}", True, expected)
        expect_choice("remat", self.remat, REMAT)
        peak = self.peak_tflops
        expect(peak is None or peak > 0, "peak_tflops", peak, "above 0")
        parse_layers("mixer_layers", self.mixer_layers)
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
        model = presets.find(config.preset or DEFAULT_PRESET)
    if config.mixer is not None:
        layers = parse_layers("mixer_layers", config.mixer_layers)
        name, options = parse_named("mixer", config.mixer)
        model = model.with_mixer(name, layers, **options)
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


def find_dtype(dtype: str) -> str:
    """Resolve "auto" to this machine's dtype; return any other name unchanged."""
    if dtype != "auto":
        return dtype
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
