"""Train a language model: ``python -m train.lm --preset based-tiny --data stdlib --workdir runs/a``.

The run directory holds config.json, metrics.jsonl, events/ (TensorBoard), checkpoints/ (Orbax) and, at the
end, model/ (safetensors and tokenizer, for `based_jax.generate` and `bj.load_pretrained`).
"""

import dataclasses
import json
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax
import tyro
from jax.sharding import Mesh
from rich.console import Console

from based_jax import command, mixers
from based_jax.convert import save_pretrained
from based_jax.data import (
    PackedTokens,
    Tokenizer,
    TrainIterator,
    held_out_batches,
    load_documents,
    load_tokenizer,
    split_documents,
    train_iterator,
)
from based_jax.models import LanguageModel, ModelConfig, presets
from based_jax.models.config import REMAT
from based_jax.models.scan import find_repeats
from based_jax.profile import model_flops
from based_jax.validate import expect, expect_choice
from train import hosts
from train.bad_loss import BadLossConfig, guard
from train.checkpoints import say_once
from train.dry_run import dry_run, use_virtual_devices
from train.hosts import HostsConfig
from train.launches import record_launch
from train.layout import layout_table
from train.loop import LoopConfig, Outcome, fit, mean_loss
from train.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from train.recipes import with_recipe
from train.run_directory import parse_run, prepare_run
from train.sharding import BATCH_AXES, parse_mesh
from train.step import Programs, TrainState, build_programs
from train.utilization import Utilization, peak_tflops

PROG = "python -m train.lm"

# What may differ between a run and its continuation; everything else decides the losses.
_MAY_CHANGE = {
    "workdir", "log_every", "eval_every", "checkpoint_every", "keep", "mesh", "resume", "print_sharding",
    "peak_tflops", "recipe",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LMConfig:
    """Train a decoder-only language model on text."""

    workdir: Path
    """run directory: config, metrics, checkpoints, final model"""
    recipe: str | None = None
    """take flags from this file, e.g. recipes/based-360m-10b.toml; those on the command line win"""
    preset: str = "based-tiny"
    """model: based-tiny, attn-tiny, based-360m, ... (based_jax.presets.names()), or a JSON file of one"""
    mixer: str | None = None
    """put this mixer in place of the preset's: mamba, hyena, ... (based_jax.mixers.names())"""
    mixer_layers: str | None = None
    """layers that get --mixer, counted from 0, e.g. 0,3; default: all"""
    data: str = "stdlib"
    """stdlib (Python's own source), a file, a directory, a glob, or hf:NAME"""
    tokenizer: str = "byte"
    """byte, dna, gpt2 (if cached locally), or a tokenizers JSON file"""
    steps: int = 1000
    """optimizer steps"""
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


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished or interrupted run."""

    model: LanguageModel
    tokenizer: Tokenizer
    held_out: PackedTokens
    outcome: Outcome
    metrics: dict[str, float]
    """held-out metrics of the final state; empty without evaluation"""


def model_config(config: LMConfig, vocab_size: int) -> ModelConfig:
    """The preset (or JSON file) with the run's mixer, the tokenizer's vocabulary and the run's dtype.

    Raises:
        ValueError: neither a preset nor a readable JSON file; a layer that it does not have; layers to scan
            where none repeat.
    """
    model = find_preset(config.preset)
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


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    model: LanguageModel
    programs: Programs
    tokenizer: Tokenizer
    training: PackedTokens
    held_out: PackedTokens
    batches: TrainIterator
    """this process's rows"""

    def fingerprint(self) -> dict[str, int]:
        """Which training text it is."""
        packed = self.training
        return {"crc32": packed.checksum, "tokens": len(packed), "bytes": packed.num_bytes}


def assemble(config: LMConfig) -> Parts:
    """Join the other processes, load the data, compile nothing yet, write nothing.

    Raises:
        ValueError, OSError: bad data or settings, in one line.
    """
    hosts.join(config.hosts)
    mesh = parse_mesh(config.mesh or (f"data={jax.device_count()}" if jax.process_count() > 1 else None))
    tokenizer = load_tokenizer(config.tokenizer)
    architecture = model_config(config, tokenizer.vocab_size)
    corpus = load_documents(config.data)
    training, held_out = split_documents(
        corpus.documents,
        fraction=config.held_out,
        max_bytes=config.held_out_bytes,
        names=config.held_out_names,
    )
    packed = PackedTokens.from_documents(training, tokenizer)
    model = LanguageModel(architecture)
    programs = make_programs(config, model, mesh)
    part, parts = hosts.share_of_rows(programs.rows)
    batches = train_iterator(
        packed,
        length=architecture.max_length,
        batch_size=config.batch_size // parts,
        seed=config.seed,
        cross_documents=config.cross_documents,
        shard_index=part,
        shard_count=parts,
    )
    return Parts(
        model, programs, tokenizer, packed, PackedTokens.from_documents(held_out, tokenizer), batches
    )


def train(config: LMConfig) -> Run:
    """Run `config` to its end, or until a signal.

    Raises:
        ValueError, OSError: bad data, settings or run directory, in one line.
    """
    loop = LoopConfig(config.steps, config.log_every, config.eval_every, config.checkpoint_every, config.keep)
    parts = assemble(config)
    model, programs, packed = parts.model, parts.programs, parts.training
    prepare_run(
        config,
        model=model.config.to_dict(),
        data=parts.fingerprint(),
        may_change=_MAY_CHANGE,
    )
    record_launch(config.workdir, programs.rows)
    if config.print_sharding and hosts.is_main():
        Console(stderr=True, width=120).print(layout_table(programs.abstract_state))
    tokens_per_byte = len(packed) / packed.num_bytes
    use = utilization(config, model.config, len(programs.rows.device_set))

    def describe(values: dict[str, float], tokens: int) -> dict[str, float]:
        auxiliary = {name: values[name] for name in ("auxiliary_loss",) if name in values}
        return {
            "loss": values["loss"],
            **auxiliary,
            "bits_per_byte": values["loss"] / math.log(2) * tokens_per_byte,
            "perplexity": math.exp(min(values["loss"], 700.0)),
            "grad_norm": values["grad_norm"],
            "learning_rate": values["learning_rate"],
            "tokens_per_second": values["tokens_per_second"],
            **use.metrics(values["tokens_per_second"] / max(tokens, 1)),
        }

    def evaluate(state: TrainState) -> dict[str, float]:
        return held_out_metrics(programs, state, parts.held_out, config, model.config.max_length)

    outcome = fit(
        programs,
        jax.random.key(config.seed),
        parts.batches,
        config.workdir,
        loop,
        describe=describe,
        evaluate=evaluate,
        bad_losses=config.bad_losses,
    )
    final = evaluate(outcome.state) if outcome.stopped_by is None and config.eval_every else {}
    params = hosts.on_main(outcome.state.params["params"])
    if hosts.is_main():
        export = config.workdir / "model"
        save_pretrained(export, model, {"params": params})
        parts.tokenizer.save(export)
    return Run(model, parts.tokenizer, parts.held_out, outcome, final)


def make_programs(config: LMConfig, model: LanguageModel, mesh: Mesh | None) -> Programs:
    """The run's compiled pieces.

    Raises:
        ValueError: a batch or sequences that the mesh cannot divide.
    """
    if mesh is not None:
        rows, columns = (math.prod(mesh.shape.get(axis, 1) for axis in axes) for axes in BATCH_AXES)
        expect(
            config.batch_size // config.accumulate % rows == 0, "batch_size", config.batch_size,
            f"a multiple of accumulate x data x fsdp = {config.accumulate * rows}",
        )  # fmt: skip
        length = model.config.max_length
        expect(length % columns == 0, "length", length, f"a multiple of the mesh's context = {columns}")
    return build_programs(
        model,
        guard(make_optimizer(config.optimizer, config.steps), config.bad_losses),
        learning_rate_schedule(config.optimizer, config.steps),
        accumulate=config.accumulate,
        seed=config.seed,
        mesh=mesh,
    )


def utilization(config: LMConfig, model: ModelConfig, devices: int) -> Utilization:
    """Operations of the run's step, and what its devices could do."""
    peak = config.peak_tflops or peak_tflops(jax.devices()[0].device_kind)
    return Utilization(config.batch_size * model_flops(model, model.max_length), peak and peak * devices)


def plan(config: LMConfig) -> None:
    """`config.dry_run`: what the run would take on each device of its mesh."""
    use_virtual_devices(config.mesh)
    model = LanguageModel(model_config(config, load_tokenizer(config.tokenizer).vocab_size))
    programs = make_programs(config, model, parse_mesh(config.mesh))
    dry_run(
        programs,
        batch_size=config.batch_size,
        length=model.config.max_length,
        segments=not config.cross_documents,
        console=Console(width=120),
    )


def held_out_metrics(
    programs: Programs, state: TrainState, packed: PackedTokens, config: LMConfig, length: int
) -> dict[str, float]:
    """Loss (nats per token), perplexity and bits per byte of text over every held-out token."""
    part, parts = hosts.share_of_rows(programs.rows)
    batches = held_out_batches(
        packed, length=length, batch_size=config.batch_size // parts, cross_documents=config.cross_documents,
        shard_index=part, shard_count=parts,
    )  # fmt: skip
    nats, targets = mean_loss(programs, state, iter(batches))
    return {
        "eval_loss": nats / targets,
        "eval_perplexity": math.exp(min(nats / targets, 700.0)),
        "eval_bits_per_byte": nats / math.log(2) / packed.num_bytes,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command; the exit status is 128 + n after signal n."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    say_once()
    config = parse_run(LMConfig, with_recipe(argv, LMConfig), PROG)
    if config.dry_run:
        plan(config)
        return 0
    with hosts.together(PROG):
        run = train(config)
    if run.outcome.stopped_by is not None:
        return 128 + run.outcome.stopped_by
    for name, value in run.metrics.items() if hosts.is_main() else ():
        print(f"{name} {value!r}")
    return 0


if __name__ == "__main__":
    command.run(PROG, main)
