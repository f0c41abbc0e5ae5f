"""Train a language model: ``python -m train.lm --preset based-tiny --data stdlib --workdir runs/a``.

The run directory holds config.json, metrics.jsonl, events/ (TensorBoard), checkpoints/ (Orbax) and, at the
end, model/ (safetensors and tokenizer, for `based_jax.generate` and `bj.load_pretrained`).
"""

import dataclasses
import json
import logging
import math
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from based_jax import command, mixers
from based_jax.convert import save_pretrained
from based_jax.data import (
    PackedTokens,
    Tokenizer,
    held_out_batches,
    load_documents,
    load_tokenizer,
    split_documents,
    train_iterator,
)
from based_jax.models import LanguageModel, ModelConfig, presets
from based_jax.validate import expect, expect_choice
from train.loop import LoopConfig, Outcome, fit, mean_loss
from train.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from train.sharding import parse_mesh
from train.step import Programs, TrainState, build_programs

PROG = "python -m train.lm"

# What may differ between a run and its continuation; everything else decides the losses.
_MAY_CHANGE = {"workdir", "log_every", "eval_every", "checkpoint_every", "keep", "mesh", "resume"}


@dataclasses.dataclass(frozen=True)
class LMConfig:
    """Train a decoder-only language model on text."""

    workdir: Path
    """run directory: config, metrics, checkpoints, final model"""
    preset: str = "based-tiny"
    """model: based-tiny, attn-tiny, based-360m, ... (based_jax.presets.names()), or a JSON file of one"""
    mixer: str | None = None
    """put this mixer in place of the preset's: mamba, hyena, ... (based_jax.mixers.names())"""
    mixer_layers: str | None = None
    """layers that get --mixer, counted from 0, e.g. 0,3; default: all"""
    data: str = "stdlib"
    """stdlib (Python's own source), a file, a directory, a glob, or hf:NAME"""
    tokenizer: str = "byte"
    """byte, gpt2 (if cached locally), or a tokenizers JSON file"""
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
    dtype: str = "auto"
    """of the computation: float32, bfloat16, or auto (bfloat16 on a GPU or TPU); parameters are float32"""
    remat: bool = False
    """recompute blocks in the backward pass: less memory, more time"""
    mesh: str | None = None
    """devices, e.g. data=2,fsdp=2 (axes data, fsdp, tensor); default: one device"""
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
        ValueError: neither a preset nor a readable JSON file; a layer that it does not have.
    """
    if config.preset in presets.names():
        model = presets.get(config.preset)
    else:
        path = Path(config.preset)
        expect(path.is_file(), "preset", config.preset, f"a JSON file or one of {', '.join(presets.names())}")
        try:
            model = ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except json.JSONDecodeError as error:
            raise ValueError(f"preset = {config.preset!r}: not valid JSON: {error}") from error
    if config.mixer is not None:
        layers = config.mixer_layers and [int(layer) for layer in config.mixer_layers.split(",")]
        model = model.with_mixer(config.mixer, layers or None)
    on_accelerator = jax.default_backend() != "cpu"
    dtype = ("bfloat16" if on_accelerator else "float32") if config.dtype == "auto" else config.dtype
    return model.replace(
        vocab_size=vocab_size, dtype=dtype, remat="block" if config.remat else "none",
        max_length=config.length or model.max_length,
    )  # fmt: skip


def train(config: LMConfig) -> Run:
    """Run `config` to its end, or until a signal.

    Raises:
        ValueError, OSError: bad data, settings or run directory, in one line.
    """
    mesh = parse_mesh(config.mesh)
    loop = LoopConfig(config.steps, config.log_every, config.eval_every, config.checkpoint_every, config.keep)
    tokenizer = load_tokenizer(config.tokenizer)
    architecture = model_config(config, tokenizer.vocab_size)
    length = architecture.max_length
    corpus = load_documents(config.data)
    training, held_out = split_documents(
        corpus.documents, fraction=config.held_out, max_bytes=config.held_out_bytes
    )
    packed = PackedTokens.from_documents(training, tokenizer)
    held_out_packed = PackedTokens.from_documents(held_out, tokenizer)
    data = train_iterator(
        packed, length=length, batch_size=config.batch_size, seed=config.seed,
        cross_documents=config.cross_documents,
    )  # fmt: skip
    _prepare_workdir(config, architecture, packed)

    model = LanguageModel(architecture)
    schedule = learning_rate_schedule(config.optimizer, config.steps)
    programs = build_programs(
        model,
        make_optimizer(config.optimizer, config.steps),
        schedule,
        accumulate=config.accumulate,
        seed=config.seed,
        mesh=mesh,
    )
    tokens_per_byte = len(packed) / packed.num_bytes

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
        }

    def evaluate(state: TrainState) -> dict[str, float]:
        return held_out_metrics(programs, state, held_out_packed, config, length)

    outcome = fit(
        programs,
        jax.random.key(config.seed),
        data,
        config.workdir,
        loop,
        describe=describe,
        evaluate=evaluate,
    )
    final = evaluate(outcome.state) if outcome.stopped_by is None and config.eval_every else {}
    export = config.workdir / "model"
    save_pretrained(export, model, {"params": outcome.state.params["params"]})
    tokenizer.save(export)
    return Run(model, tokenizer, held_out_packed, outcome, final)


def held_out_metrics(
    programs: Programs, state: TrainState, packed: PackedTokens, config: LMConfig, length: int
) -> dict[str, float]:
    """Loss (nats per token), perplexity and bits per byte of text over every held-out token."""
    batches = held_out_batches(
        packed, length=length, batch_size=config.batch_size, cross_documents=config.cross_documents
    )
    nats, targets = mean_loss(programs, state, iter(batches))
    return {
        "eval_loss": nats / targets,
        "eval_perplexity": math.exp(min(nats / targets, 700.0)),
        "eval_bits_per_byte": nats / math.log(2) / packed.num_bytes,
    }


def _prepare_workdir(config: LMConfig, architecture: ModelConfig, packed: PackedTokens) -> None:
    """Write config.json, or check it against a run that is continued."""
    path = config.workdir / "config.json"
    settings = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    if any((config.workdir / "checkpoints").glob("[0-9]*")):
        expect(
            config.resume, "workdir", str(config.workdir),
            "a new directory, or --resume: this one holds checkpoints of a run",
        )  # fmt: skip
        before = _read_config(path)
        for name, value in settings.items():
            old = before["train"].get(name, value)
            expect(name in _MAY_CHANGE or old == value, name, value, f"{old!r} as in the run that is resumed")
        expect(
            before["data"]["crc32"] == packed.checksum, "data", config.data,
            "the same training text as in the run that is resumed",
        )  # fmt: skip
        return
    config.workdir.mkdir(parents=True, exist_ok=True)
    versions = {
        name: metadata.version(name) for name in ("jax", "flax", "optax", "orbax-checkpoint", "grain")
    }
    content = {
        "model": architecture.to_dict(),
        "train": settings,
        "data": {"crc32": packed.checksum, "tokens": len(packed), "bytes": packed.num_bytes},
        "versions": {"python": platform.python_version(), **versions},
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    expect("train" in content and "data" in content, str(path), sorted(content), "a run's config.json")
    return content


def parse(argv: Sequence[str] | None) -> LMConfig:
    """Flags to settings; with --resume the run's own settings are the defaults."""
    given = list(sys.argv[1:] if argv is None else argv)
    default = None
    if "--resume" in given and "--workdir" in given[:-1]:
        path = Path(given[given.index("--workdir") + 1]) / "config.json"
        if path.exists():
            saved = _read_config(path)["train"]
            saved |= {"workdir": Path(saved["workdir"]), "optimizer": OptimizerConfig(**saved["optimizer"])}
            default = LMConfig(**saved)
    return command.parse(LMConfig, given, prog=PROG, default=default)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; the exit status is 128 + n after signal n."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("absl").setLevel(logging.ERROR)
    run = train(parse(argv))
    if run.outcome.stopped_by is not None:
        return 128 + run.outcome.stopped_by
    for name, value in run.metrics.items():
        print(f"{name} {value!r}")
    return 0


if __name__ == "__main__":
    command.run(PROG, main)
