"""Train on a synthetic task: ``based-jax train synthetic --task forgetting --mixer based --epochs 8``.

One compiled program (`based_jax.training.mqar`) trains all learning rates and seeds, with the recipe of
Zoology's code. A task on embeddings (`stacked`) trains Zoology's continuous model: vectors in, and out of the
same layers a vector that is scored against the table of values, which is fixed.
"""

import dataclasses
import functools
import json
import logging
import math
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from based_jax import command, mixers
from based_jax.data.tasks import TASKS, Task, task_settings
from based_jax.files import write_json
from based_jax.generate.rows import row_bytes
from based_jax.models import LanguageModel, MixerSpec, ModelConfig, mqar_backbone, param_count
from based_jax.training.mqar.data import AXES, EXAMPLES, columns, make_segments, parse_segments
from based_jax.training.mqar.sweep import Outcome, SweepConfig, sweep
from based_jax.training.named_options import parse_mixer, parse_named, split_mixers
from based_jax.training.recipes import with_recipe
from based_jax.training.run import directory
from based_jax.training.run.checkpoints import say_once
from based_jax.training.run.trackers import TrackConfig
from based_jax.validate import expect, expect_choice, expect_ranges

PROG = "based-jax train synthetic"

# Settings that may change on resuming.
_MAY_CHANGE = {"workdir", "tracking", "log_every", "recipe"}
_OF_THE_TASK = {**AXES, "vocab_size": "vocab_size", "power": "power", "random_fill": "random_fill"}
"""Flags that set a task's settings."""

_TASKS = f"{', '.join(TASKS)}; settings as in forgetting:num_updates=2"

_DEFAULTS = {"mqar": {"num_pairs": 4}}
"""Settings of a task that differ from its own defaults."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticConfig(SweepConfig):
    """Train small models on a synthetic task, many learning rates and seeds at once."""

    mixer: str | None = None
    """mixer of the papers' two-layer model: based, attention, mamba, ... (based_jax.mixers.names()), or that
    of a module, my_package.mixer:MyMixer; options as in based:feature_dim=24"""
    layers: str | None = None
    """mixers of all layers, instead of --mixer, e.g. base_conv:kernel_size=3,gla:num_heads=2"""
    task: Annotated[str, tyro.conf.arg(help=_TASKS)] = "mqar"
    d_model: int = 64
    """width of the model"""
    vocab_size: int | None = None
    """vocabulary size, of mqar 8192: the lower half are keys, the upper half values; default: the task's"""
    length: int | None = None
    """tokens per example; default: the task's, for most 64"""
    pairs: int | None = None
    """key-value pairs per example; default: the task's, for mqar 4"""
    examples: int = 100_000
    """training examples"""
    test_examples: int = 3000
    """test examples of each segment"""
    train: str | None = None
    """training segments length:pairs:examples, instead of the three flags, e.g. 64:4:100000,128:8:20000;
    without the column that a task does not have, e.g. 64:100000 for parity"""
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
    dropout: float = 0.1
    """dropout of the embeddings"""
    dtype: str = "float32"
    """compute dtype: float32 or bfloat16; parameters are float32"""
    tracking: Annotated[TrackConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=TrackConfig)
    recipe: str | None = None
    """TOML file of flags, e.g. recipes/synthetic/forgetting.toml; flags on the command line override it"""
    workdir: Path | None = None
    """run directory; default: a directory in runs/TASK, named after the settings"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "d_model", "vocab_size", "length", "pairs", "examples", "test_examples")
        super().__post_init__()
        expect_choice("dtype", self.dtype, ("float32", "bfloat16"))

    @functools.cached_property
    def task_and_settings(self) -> tuple[str, dict[str, Any]]:
        """Return the task's name, and its settings from --task, the flags and the defaults, in this order."""
        name, options = parse_named("task", self.task)
        known = task_settings(name)
        expect(EXAMPLES not in options, "task", self.task, "--examples instead of num_examples")
        given = {
            setting: getattr(self, flag)
            for flag, setting in _OF_THE_TASK.items()
            if getattr(self, flag) != getattr(SyntheticConfig, flag)
        }
        for flag, setting in _OF_THE_TASK.items():
            if setting in given:
                expected = f"none with the task {name}, which has {', '.join(known)}"
                expect(setting in known, flag, given[setting], expected)
                expect(setting not in options, "task", self.task, f"no {setting}, which --{flag} sets")
        return name, {**_DEFAULTS.get(name, {}), **given, **options}

    @functools.cached_property
    def segments(self) -> tuple[list[Task], list[Task]]:
        name, settings = self.task_and_settings
        names = columns(name)
        settings_of_one = {**task_settings(name), **settings}
        train = [(*(settings_of_one[AXES[column]] for column in names), self.examples)]
        if self.train is not None:
            train = parse_segments("train", self.train, [*names, "examples"])
        test = [row[:-1] for row in train]
        if self.test is not None:
            test = parse_segments("test", self.test, names)
        tests = make_segments(name, settings, test, self.test_examples)
        return make_segments(name, settings, train), tests

    @property
    def longest(self) -> int:
        """Return the number of tokens of the longest example."""
        tasks: Any = [*self.segments[0], *self.segments[1]]
        return max(task.length for task in tasks)

    @property
    def architecture(self) -> ModelConfig:
        mixer, layers = None, None
        if self.layers is not None:
            layers = [_spec("layers", layer) for layer in split_mixers("layers", self.layers)]
        elif self.mixer is not None:
            mixer = _spec("mixer", self.mixer)
        name, given = (mixer.mixer, mixer.options) if mixer else (None, None)
        options: Any = {field: getattr(self, field) for field in ("positions", "dropout", "mlp", "dtype")}
        task: Any = self.segments[0][0]
        model = mqar_backbone(name, self.d_model, task.vocab_size, self.longest, layers, given, **options)
        vectors = jax.eval_shape(task.label_vectors)
        if vectors is None:
            expect(self.loss == "cross_entropy", "loss", self.loss, "cross_entropy for a task on tokens")
            return model
        labels, width = vectors.shape
        return model.replace(
            vocab_size=labels, embed_dim=width, input_dim=task.input_dim, freeze_embedding=True
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings as written to config.json, with those of the task that have defaults there."""
        name, settings = self.task_and_settings
        settings = {**task_settings(name), **settings}
        used = {flag: settings.get(setting) for flag, setting in _OF_THE_TASK.items()}
        return json.loads(json.dumps({**dataclasses.asdict(self), **used}, default=str))

    @property
    def directory(self) -> Path:
        if self.workdir is not None:
            return self.workdir
        fixed = {key: value for key, value in self.settings.items() if key not in _MAY_CHANGE}
        name = "-".join(spec.mixer for spec in self.architecture.mixers.values())
        own = f"{name}-{zlib.crc32(json.dumps(fixed).encode()):08x}"
        return Path("runs") / self.task_and_settings[0] / own


def train_synthetic(config: SyntheticConfig) -> Outcome:
    """Run `config` to its end, or until a signal."""
    config.tracking.expect_installed()
    architecture, (train, test) = config.architecture, config.segments
    facts = facts_of(config)
    with directory.sole_run(config.directory):
        _prepare_workdir(config, architecture)
        return sweep(architecture, train, test, config, config.directory, facts, config.tracking)


def facts_of(config: SyntheticConfig) -> dict[str, Any]:
    """Return what is known before training: the entries that all records of a run share."""
    architecture = config.architecture
    stateful = all(mixers.info(spec.mixer).stateful for spec in architecture.mixers.values())
    return {
        "task": config.task_and_settings[0],
        "device": jax.devices()[0].device_kind,
        "mixer": config.layers or config.mixer,
        "d_model": config.d_model,
        "parameters": param_count(architecture),
        "state_size": LanguageModel(architecture).state_size(config.longest) if stateful else None,
        "state_bytes": state_bytes(architecture, config.longest) if stateful else None,
    }


def state_bytes(architecture: ModelConfig, length: int) -> int | None:
    """Return the bytes of `init_state` for one sequence of `length` tokens, with caches and counters.

    None if a mixer has no state with its options, such as `input_conv` with the filter "autocorrelation".
    """
    model = LanguageModel(architecture)
    try:
        return row_bytes(jax.eval_shape(lambda: model.init_state(1, length)))
    except ValueError:
        return None


def _prepare_workdir(config: SyntheticConfig, architecture: ModelConfig) -> None:
    """Write config.json, or check the settings against it when a run is resumed."""
    path = config.directory / "config.json"
    if path.exists():
        before = directory.read_config(path, ["train"])["train"]
        kept = f"as in the run that {config.directory} holds, or another workdir"
        directory.expect_same_settings(config.settings, before, _MAY_CHANGE, kept)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    packages = directory.versions("jax", "flax", "optax", "orbax-checkpoint")
    write_json(path, {"model": architecture.to_dict(), "train": config.settings, "versions": packages})


def _spec(argument: str, text: str) -> MixerSpec:
    """Parse NAME:option=value:... as a mixer with options."""
    return MixerSpec(*parse_mixer(argument, text))


def _sentence(record: dict[str, Any]) -> str:
    run = f"learning_rate {record['learning_rate']:g}  seed {record['seed']}"
    if record["status"] == "failed":
        return f"{run}  failed at step {record['steps']}"
    slices = record["slices"]
    parts = [f"{key} {value}: {share:.4f}" for key in slices for value, share in slices[key].items()]
    return f"{run}  accuracy {record['accuracy']:.4f}  epochs {record['epochs']:g}  ({', '.join(parts)})"


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command `prog`; the exit status is 128 + n after signal n."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    say_once()
    config = command.parse(SyntheticConfig, with_recipe(argv, SyntheticConfig), prog=prog)
    outcome = train_synthetic(config)
    for record in outcome.records:
        print(_sentence(record))
    best = max((r["accuracy"] for r in outcome.records if r["status"] != "failed"), default=math.nan)
    print(f"best accuracy {best!r}; results in {config.directory / 'results.jsonl'}")
    return 0 if outcome.stopped_by is None else 128 + outcome.stopped_by
