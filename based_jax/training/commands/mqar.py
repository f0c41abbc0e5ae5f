"""Train on multi-query associative recall: ``python -m train.mqar --mixer based --learning-rates 1e-3,3e-3``.

One compiled program (`based_jax.training.mqar`) trains all learning rates and seeds at once, with the recipe
of Zoology's code: AdamW with weight decay on every parameter, a cosine schedule that changes once per epoch,
a test after every epoch, early stopping above an accuracy of 0.99. The run directory holds config.json,
results.jsonl (one object per learning rate and seed), metrics.jsonl, events/ (TensorBoard) and checkpoints/
(Orbax). Running the same command again resumes an interrupted sweep and retrains nothing that has a result.
"""

import dataclasses
import json
import logging
import math
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import jax
import tyro

from based_jax import command, mixers
from based_jax.data.tasks import MQAR
from based_jax.generate.rows import row_bytes
from based_jax.models import LanguageModel, MixerSpec, ModelConfig, mqar_backbone, param_count
from based_jax.training.mixer_options import parse_options
from based_jax.training.mqar.sweep import Outcome, SweepConfig, sweep
from based_jax.training.run import directory
from based_jax.training.run.checkpoints import say_once
from based_jax.training.run.trackers import TrackConfig
from based_jax.validate import expect, expect_choice, expect_range, expect_ranges

PROG = "python -m train.mqar"

# Settings that may change on resuming.
_MAY_CHANGE = {"workdir", "tracking", "log_every"}
_OF_THE_LOOP = ("epochs", "batch_size", "weight_decay", "stop_above", "log_every")

Number = TypeVar("Number", int, float)


@dataclasses.dataclass(frozen=True)
class MQARConfig:
    """Train small models on multi-query associative recall, many learning rates and seeds at once."""

    mixer: str | None = None
    """mixer of the papers' two-layer model: based, attention, mamba, ... (based_jax.mixers.names()); options
    as in based:feature_dim=24"""
    layers: str | None = None
    """mixers of all layers, instead of --mixer, e.g. base_conv:kernel_size=3,gla:num_heads=2"""
    d_model: int = 64
    """width of the model"""
    vocab_size: int = 8192
    """vocabulary size; the lower half are keys, the upper half values"""
    length: int = 64
    """tokens per example"""
    pairs: int = 4
    """key-value pairs per example"""
    examples: int = 100_000
    """training examples"""
    test_examples: int = 3000
    """test examples of each segment"""
    train: str | None = None
    """training segments length:pairs:examples, instead of the three flags, e.g. 64:4:100000,128:8:20000"""
    test: str | None = None
    """test segments length:pairs, e.g. 64:4,1024:256; default: those of training"""
    random_fill: bool = True
    """fill the gaps between queries with random tokens; --no-random-fill with token 0"""
    power: float = 0.01
    """exponent of the query distances: below 1 they are mostly short, 1 is uniform"""
    positions: bool = False
    """add learned position embeddings, as Zoology's Figure 2 does for attention"""
    mlp: str | None = None
    """channel mixer of each layer: identity (add a normalized copy of the residual stream, as in the papers'
    studies), none, plain or gated; default: identity, or none with Mamba"""
    epochs: int = 32
    """passes over the training examples"""
    batch_size: int = 256
    """examples per step"""
    learning_rates: str = "1e-3,3.16e-3,1e-2,3.16e-2"
    """learning rates, all trained at once"""
    seeds: str = "0"
    """seeds of initialisation, dropout and data, all trained at once"""
    weight_decay: float = 0.1
    """decoupled weight decay of every parameter"""
    dropout: float = 0.1
    """dropout of the embeddings"""
    stop_above: float = 0.99
    """stop a run after the first epoch with an accuracy above this"""
    dtype: str = "float32"
    """compute dtype: float32 or bfloat16; parameters are float32"""
    tracking: Annotated[TrackConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=TrackConfig)
    log_every: int = 20
    """steps between log lines"""
    workdir: Path | None = None
    """run directory; default: a directory in runs/mqar, named after the settings"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "d_model", "vocab_size", "length", "pairs", "examples", "test_examples")
        expect_choice("dtype", self.dtype, ("float32", "bfloat16"))

    @property
    def sweep(self) -> SweepConfig:
        return SweepConfig(
            learning_rates=_numbers("learning_rates", self.learning_rates, float),
            seeds=_numbers("seeds", self.seeds, int),
            **{name: getattr(self, name) for name in _OF_THE_LOOP},
        )

    @property
    def segments(self) -> tuple[list[MQAR], list[MQAR]]:
        train = [(self.length, self.pairs, self.examples)]
        if self.train is not None:
            train = [_segment("train", part, 3) for part in self.train.split(",")]
        test = [(length, pairs) for length, pairs, _ in train]
        if self.test is not None:
            test = [_segment("test", part, 2) for part in self.test.split(",")]

        def task(length: int, pairs: int, examples: int) -> MQAR:
            return MQAR(self.vocab_size, examples, length, pairs, self.power, self.random_fill)

        tests = [task(length, pairs, self.test_examples) for length, pairs in test]
        return [task(length, pairs, examples) for length, pairs, examples in train], tests

    @property
    def longest(self) -> int:
        """Return the number of tokens of the longest example."""
        return max(task.length for tasks in self.segments for task in tasks)

    @property
    def architecture(self) -> ModelConfig:
        mixer, layers = None, None
        if self.layers is not None:
            layers = [_spec("layers", layer) for layer in self.layers.split(",")]
        elif self.mixer is not None:
            mixer = _spec("mixer", self.mixer)
        name, given = (mixer.mixer, mixer.options) if mixer else (None, None)
        options: Any = {field: getattr(self, field) for field in ("positions", "dropout", "mlp", "dtype")}
        return mqar_backbone(name, self.d_model, self.vocab_size, self.longest, layers, given, **options)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings as written to config.json."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=str))

    @property
    def directory(self) -> Path:
        if self.workdir is not None:
            return self.workdir
        fixed = {name: value for name, value in self.settings.items() if name not in _MAY_CHANGE}
        name = "-".join(spec.mixer for spec in self.architecture.mixers.values())
        return Path("runs") / "mqar" / f"{name}-{zlib.crc32(json.dumps(fixed).encode()):08x}"


def train_mqar(config: MQARConfig) -> Outcome:
    """Run `config` to its end, or until a signal."""
    config.tracking.expect_installed()
    architecture, (train, test), grid = config.architecture, config.segments, config.sweep
    stateful = all(mixers.info(spec.mixer).stateful for spec in architecture.mixers.values())
    facts = {
        "mixer": config.layers or config.mixer,
        "d_model": config.d_model,
        "parameters": param_count(architecture),
        "state_size": LanguageModel(architecture).state_size(config.longest) if stateful else None,
        "state_bytes": state_bytes(architecture, config.longest) if stateful else None,
    }
    with directory.sole_run(config.directory):
        _prepare_workdir(config, architecture)
        return sweep(architecture, train, test, grid, config.directory, facts, config.tracking)


def state_bytes(architecture: ModelConfig, length: int) -> int:
    """Return the bytes of `init_state` for one sequence of `length` tokens, with caches and counters."""
    model = LanguageModel(architecture)
    return row_bytes(jax.eval_shape(lambda: model.init_state(1, length)))


def _prepare_workdir(config: MQARConfig, architecture: ModelConfig) -> None:
    """Write config.json, or check the settings against it when a run is resumed."""
    path = config.directory / "config.json"
    if path.exists():
        before = directory.read_config(path, ["train"])["train"]
        kept = f"as in the run that {config.directory} holds, or another workdir"
        directory.expect_same_settings(config.settings, before, _MAY_CHANGE, kept)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    packages = directory.versions("jax", "flax", "optax", "orbax-checkpoint")
    content = {"model": architecture.to_dict(), "train": config.settings, "versions": packages}
    directory.write_config(path, content)


def _numbers(argument: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        example = "0,1" if kind is int else "1e-3,3e-3"
        raise ValueError(f"{argument} = {text!r}: expected numbers such as {example}") from None


def _segment(argument: str, text: str, count: int) -> tuple[int, ...]:
    numbers = text.split(":")
    is_fine = len(numbers) == count and all(number.strip().isdigit() for number in numbers)
    expect(is_fine, argument, text, ("length:pairs", "length:pairs:examples")[count - 2] + ", such as 64:4")
    for number in numbers:
        expect_range(argument, int(number), 0)
    return tuple(int(number) for number in numbers)


def _spec(argument: str, text: str) -> MixerSpec:
    """Parse NAME:option=value:... as a mixer with options."""
    name, *pairs = text.strip().split(":")
    expected = "NAME or NAME:option=value:option=value"
    return MixerSpec(name, parse_options(argument, text, pairs, expected))


def _sentence(record: dict[str, Any]) -> str:
    run = f"learning_rate {record['learning_rate']:g}  seed {record['seed']}"
    if record["status"] == "failed":
        return f"{run}  failed at step {record['steps']}"
    slices = record["slices"]
    parts = [f"{key} {value}: {share:.4f}" for key in slices for value, share in slices[key].items()]
    return f"{run}  accuracy {record['accuracy']:.4f}  epochs {record['epochs']:g}  ({', '.join(parts)})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 128 + n after signal n."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    say_once()
    config = command.parse(MQARConfig, argv, prog=PROG)
    outcome = train_mqar(config)
    for record in outcome.records:
        print(_sentence(record))
    best = max((r["accuracy"] for r in outcome.records if r["status"] != "failed"), default=math.nan)
    print(f"best accuracy {best!r}; results in {config.directory / 'results.jsonl'}")
    return 0 if outcome.stopped_by is None else 128 + outcome.stopped_by
