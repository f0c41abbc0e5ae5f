"""Settings of `train synthetic`: learning rates and seeds, the task and its segments, and the model."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import tyro

from based_jax.data.tasks import TASKS, Task, make_task, task_settings
from based_jax.models import MixerSpec, ModelConfig, mqar_backbone
from based_jax.training.mqar.grid import LABEL_LOSSES
from based_jax.training.named_options import parse_mixer, parse_named, split_mixers
from based_jax.validate import expect, expect_choice, expect_range, expect_ranges

AXES = {"length": "length", "pairs": "num_pairs"}
"""Columns of --train and --test, and the settings that they are; a task may lack one of them."""

EXAMPLES = "num_examples"

_OF_THE_TASK = {**AXES, "vocab_size": "vocab_size", "power": "power", "random_fill": "random_fill"}
"""Flags that set a task's settings."""

_TASKS = f"{', '.join(TASKS)}; settings as in forgetting:num_updates=2"

_DEFAULTS = {"mqar": {"num_pairs": 4}}
"""Settings of a task that differ from its own defaults."""


class Run(NamedTuple):
    """One model of a sweep."""

    learning_rate: float
    seed: int

    def __str__(self) -> str:
        return f"learning rate {self.learning_rate:g}, seed {self.seed}"

    @property
    def tag(self) -> str:
        """Return its name in metrics.jsonl, in characters that TensorBoard allows."""
        return f"lr-{self.learning_rate:g}-seed-{self.seed}".replace("+", "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """Train small models on a synthetic task, many learning rates and seeds at once."""

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
    loss: str = "cross_entropy"
    """cross_entropy; or mse for stacked: the squared distance of an output from its value's vector"""
    stop_above: float = 0.99
    """stop a run after the first epoch with an accuracy above this"""
    log_every: int = 20
    """steps between log lines"""

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
    recipe: str | None = None
    """TOML file of flags, e.g. recipes/synthetic/forgetting.toml; flags on the command line override it"""
    workdir: Path = Path("runs/synthetic")
    """run directory; the same settings resume the run in it"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "d_model", "vocab_size", "length", "pairs", "examples", "test_examples")
        expect_ranges(self, 1, "epochs", "batch_size", "log_every")
        rates, seeds = self.rates_and_seeds
        expect(all(0 < rate < math.inf for rate in rates), "learning_rates", rates, "numbers above 0")
        expect(all(0 <= seed < 2**32 for seed in seeds), "seeds", seeds, "integers in [0, 2^32)")
        for name, values in (("learning_rates", rates), ("seeds", seeds)):
            expect(len(set(values)) == len(values), name, values, "one or more different values")
        expect(self.weight_decay >= 0, "weight_decay", self.weight_decay, "at least 0")
        expect_choice("loss", self.loss, tuple(LABEL_LOSSES))
        expect(self.stop_above > 0, "stop_above", self.stop_above, "above 0; 1 or more is never")
        expect_choice("dtype", self.dtype, ("float32", "bfloat16"))

    @functools.cached_property
    def rates_and_seeds(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        rates = _numbers("learning_rates", self.learning_rates, float, "1e-3,3e-3")
        return rates, _numbers("seeds", self.seeds, int, "0,1")

    @property
    def runs(self) -> list[Run]:
        rates, seeds = self.rates_and_seeds
        return [Run(rate, seed) for seed in seeds for rate in rates]

    def schedule(self, epoch: int) -> float:
        """Return the factor of the learning rate in `epoch` (from 0): half a cosine, constant in an epoch."""
        return (1 + math.cos(math.pi * epoch / self.epochs)) / 2

    @functools.cached_property
    def task_and_settings(self) -> tuple[str, dict[str, Any]]:
        """Return the task's name, and its settings from --task, the flags and the defaults, in this order."""
        name, options = parse_named("task", self.task)
        known = task_settings(name)
        expect(EXAMPLES not in options, "task", self.task, "--examples instead of num_examples")
        settings = {**_DEFAULTS.get(name, {}), **options}
        for flag, setting in _OF_THE_TASK.items():
            value = getattr(self, flag)
            if value != getattr(SyntheticConfig, flag):
                expected = f"none with the task {name}, which has {', '.join(known)}"
                expect(setting in known, flag, value, expected)
                expect(setting not in options, "task", self.task, f"no {setting}, which --{flag} sets")
                settings[setting] = value
        return name, settings

    @functools.cached_property
    def segments(self) -> tuple[list[Task], list[Task]]:
        name, settings = self.task_and_settings
        known = task_settings(name)
        names = [column for column, setting in AXES.items() if setting in known]
        train = [(*({**known, **settings}[AXES[column]] for column in names), self.examples)]
        if self.train is not None:
            train = parse_segments("train", self.train, [*names, "examples"])
        test = [row[:-1] for row in train] if self.test is None else parse_segments("test", self.test, names)
        keys = [*(AXES[column] for column in names), EXAMPLES]

        def tasks(rows: Iterable[Sequence[int]]) -> list[Task]:
            return [make_task(name, {**settings, **dict(zip(keys, row, strict=True))}) for row in rows]

        return tasks(train), tasks((*row, self.test_examples) for row in test)

    @property
    def longest(self) -> int:
        """Return the number of tokens of the longest example."""
        tasks: Any = [*self.segments[0], *self.segments[1]]
        return max(task.length for task in tasks)

    @property
    def architecture(self) -> ModelConfig:
        name, given, layers = None, None, None
        if self.layers is not None:
            texts = split_mixers("layers", self.layers)
            layers = [MixerSpec(*parse_mixer("layers", text)) for text in texts]
        elif self.mixer is not None:
            name, given = parse_mixer("mixer", self.mixer)
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


def _numbers(argument: str, text: str, kind: Callable[[str], Any], example: str) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{argument} = {text!r}: expected numbers such as {example}") from None


def parse_segments(argument: str, text: str, names: Sequence[str]) -> list[tuple[int, ...]]:
    """Parse segments such as ``64:4:1000,128:8:500``, each with the columns `names`; or ValueError."""
    found = []
    for part in text.split(","):
        numbers = part.split(":")
        is_fine = len(numbers) == len(names) and all(number.strip().isdecimal() for number in numbers)
        example = ":".join(("64", "4", "1000")[: len(names)])
        expect(is_fine, argument, part, f"{':'.join(names)}, such as {example}")
        for number in numbers:
            expect_range(argument, int(number), 0)
        found.append(tuple(int(number) for number in numbers))
    return found
