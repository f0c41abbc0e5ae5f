"""Train self-attention on colliding agents, and test it at other lengths than those of training.

The experiment of Ustaomeroglu & Qu 2025, section 4 and appendix B: agents on a circle of N cells, -1 for each
agent within reach, linear self-attention that starts from C = 0 and <x_a, W> = a positive number. Training is
full-batch gradient descent on the squared error in float64: Euler steps of the theorems' gradient flow.

A run has one of the embeddings and one start. Its weights are saved at each checkpoint, so that a stopped run
can be resumed.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from based_jax.typing import Float, Int
from papers.hyper_self_attention.interactions import embeddings
from papers.hyper_self_attention.interactions.constructions import Weights, exact, sinusoidal_collisions
from papers.hyper_self_attention.interactions.data import Interactions, sample
from papers.hyper_self_attention.interactions.environments import collisions
from papers.hyper_self_attention.interactions.gradient_flow import exact_entities, flow, promise, start
from papers.hyper_self_attention.interactions.layers import linear_self_attention
from papers.hyper_self_attention.interactions.moments import Moments, moments, squared_error
from papers.hyper_self_attention.interactions.transform import gap, transform

LENGTHS = (2, 5, 10, 20, 30, 40)
"""Lengths of the tests, the paper's."""


@dataclass(frozen=True)
class Setting:
    """A scale of the experiment."""

    size: int  # cells N of the circle, which are the symbols and the width of the embeddings
    radius: int  # radius of the agents, R cells
    length: int  # agents L in a training sequence
    sequences: int  # training sequences B
    step: float  # learning rate
    steps: int
    checkpoints: int
    tests: int  # test sequences of each length


SETTINGS: Mapping[str, Setting] = {
    "smoke": Setting(12, 1, 6, 600, step=0.1, steps=500, checkpoints=5, tests=200),
    "cpu": Setting(36, 2, 10, 4000, step=0.2, steps=800, checkpoints=10, tests=1000),
    "paper": Setting(360, 5, 20, 100_000, step=0.5, steps=1600, checkpoints=16, tests=1000),
}


@dataclass(frozen=True)
class Run:
    """Embeddings, and <x_a, W> before training: drawn between `least` and `most` for each a."""

    name: str
    title: str
    table: Callable[[int], Float[np.ndarray, "N N"]]
    devised: Callable[[int, int], Weights]  # constructed weights, from the radius and the size
    least: float = 1.0
    most: float = 1.0


def _one_hot_weights(radius: int, size: int) -> Weights:
    agents = collisions(radius, size)
    return exact(agents.f, agents.w, embeddings.one_hot(size))


_WAVES = (embeddings.sinusoidal, sinusoidal_collisions)
RUNS = (
    Run("one_hot", "one-hot", embeddings.one_hot, _one_hot_weights),
    Run("sinusoidal", "sinusoidal", *_WAVES),
    Run("unequal", "sinusoidal, unequal start", *_WAVES, least=0.5, most=2.0),
)


@dataclass(frozen=True)
class Data:
    """Training sequences of one scale and seed."""

    x: Int[np.ndarray, "B L"]
    y: Float[np.ndarray, "B L"]
    moments: Moments


def training_data(setting: Setting, seed: int) -> Data:
    """Draw uniform and independent positions."""
    rng = np.random.default_rng([seed, 0])
    x = sample(rng, setting.size, setting.length, setting.sequences)
    y = collisions(setting.radius, setting.size).targets(x)[..., 0]
    return Data(x, y, moments(x, y, setting.size))


def train(
    run: Run, setting: Setting, data: Data, seed: int, kept: Path, report: Callable[[str], None]
) -> tuple[Weights, dict[str, Any]]:
    """Train from the start, drawn from `seed`, or from the file `kept`, which is written at each checkpoint.

    Returns:
        The trained weights, and facts of the path: `history` of the training loss and the theorem's bound,
        `drift` of the conservation law, `smallest_value` of w on the path, and `seconds`.
    """
    table = run.table(setting.size)
    rng = np.random.default_rng([seed, 1])
    began = start(rng.uniform(run.least, run.most, setting.size), table)
    path, weights = _load(kept)
    if weights is None:
        weights = began
        path = {"history": [], "drift": 0.0, "smallest_value": _smallest(began, table), "seconds": 0.0}
    promised = promise(began, _training_loss(began, table, data), data.moments, table)
    if not path["history"]:
        path["history"].append({"time": 0.0, "loss": promised.loss, "bound": promised.loss})
    every = setting.steps // setting.checkpoints
    left = setting.checkpoints + 1 - len(path["history"])
    clock = time.perf_counter()
    how = {"step": setting.step, "steps": left * every, "checkpoints": left, "method": "euler"}
    how |= {"time": path["history"][-1]["time"]}
    basis = None if run.name == "one_hot" else table
    points = flow(weights, data.moments, basis, **how) if left else ()
    for now, weights in points:
        loss = _training_loss(weights, table, data)
        path["history"].append({"time": now, "loss": loss, "bound": promised.bound(now)})
        path["drift"] = promised.drift(weights, table)
        path["smallest_value"] = min(path["smallest_value"], _smallest(weights, table))
        path["seconds"] += time.perf_counter() - clock
        clock = time.perf_counter()
        _save(kept, weights, path)
        done = len(path["history"]) - 1
        report(f"{run.title}: step {done * every} of {setting.steps}, training loss {loss:.2e}")
    return weights, path


def examine(run: Run, setting: Setting, weights: Weights, seed: int) -> dict[str, Any]:
    """Test trained weights, and compare them with the devised ones.

    Returns:
        `test_mse` by length, of the layer on uniform positions; `test_mse_skewed`, the same with the
        probability of position a proportional to 1 / (a + 1); and the gaps to the devised weights: `c_gap`,
        mean square of the difference of C, `t_gap` and `t_largest`, mean square and largest of T's.
    """
    table, agents = run.table(setting.size), collisions(setting.radius, setting.size)
    devised = run.devised(setting.radius, setting.size)
    rng = np.random.default_rng([seed, 2])
    skewed = 1 / np.arange(1, setting.size + 1)

    def error(length: int, law: np.ndarray | None) -> float:
        x = sample(rng, setting.size, length, setting.tests, law)
        with jax.enable_x64(True):
            outputs = np.asarray(jax.jit(linear_self_attention)(table[x], *weights))[..., 0]
        return squared_error(outputs, agents.targets(x)[..., 0])

    laws = {"test_mse": None, "test_mse_skewed": skewed / skewed.sum()}
    found = {name: {str(length): error(length, law) for length in LENGTHS} for name, law in laws.items()}
    between = gap(transform(table, *weights), transform(table, *devised))
    c_gap = gap(weights.c, devised.c).mean_square
    return {**found, "c_gap": c_gap, "t_gap": between.mean_square, "t_largest": between.largest}


def record(run: Run, setting: Setting, path: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of results.jsonl."""
    head = {"run": run.name, "title": run.title, "start": [run.least, run.most], **asdict(setting)}
    return {**head, "train_mse": path["history"][-1]["loss"], **found, **path}


def load_weights(kept: Path) -> Weights:
    """Load the weights that `train` saved last."""
    weights = _load(kept)[1]
    if weights is None:
        raise FileNotFoundError(f"{kept} is not there: expected the weights of a run")
    return weights


def _training_loss(weights: Weights, table: np.ndarray, data: Data) -> float:
    """Compute it from symbols: equal to the layer's on vectors, without S floats for each entity."""
    c, w = exact_entities(weights, table)
    return squared_error(Interactions(c, w[:, None]).targets(data.x)[..., 0], data.y)


def _smallest(weights: Weights, table: np.ndarray) -> float:
    return float(exact_entities(weights, table)[1].min())


def _save(path: Path, weights: Weights, facts: Mapping[str, Any]) -> None:
    new = path.with_suffix(".part.npz")
    np.savez(new, c=weights.c, w=weights.w, facts=json.dumps(facts))
    new.replace(path)


def _load(path: Path) -> tuple[dict[str, Any], Weights | None]:
    if not path.exists():
        return {}, None
    with np.load(path) as held:
        return json.loads(str(held["facts"])), Weights(held["c"], held["w"])
