"""Training on every synthetic task: its labels and losses, the model of vectors, flags and recipes."""

import functools
import re
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import based_jax as bj
from based_jax.command import parse
from based_jax.data.tasks import (
    IGNORE,
    TASKS,
    Compositional,
    Forgetting,
    StackedMQAR,
    make_task,
    task_settings,
)
from based_jax.models import mqar_backbone
from based_jax.testing.laws import QUICKLY
from based_jax.training.commands import synthetic
from based_jax.training.mqar.grid import Batches, Grid, VmappedRuns, load
from based_jax.training.recipes import with_recipe
from tests.arrays import normals
from tests.marks import slow_but

RUNS = VmappedRuns(np.full(1, 1e-2, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.int32))
ROWS, LENGTH, VOCAB = 4, 24, 32
SETTINGS = {"vocab_size": VOCAB, "length": LENGTH, "num_pairs": 4, "num_updates": 2, "num_copied": 4}
SETTINGS |= {"num_contexts": 1, "num_keys": 5, "degree": 3}


class Programs(NamedTuple):
    """One tiny model, whose programs all tasks share."""

    grid: Grid
    state: object
    expected_loss: object


def of_shape(part, rows: int, length: int) -> Batches:
    """The batches of a part with `length` labels per row, some of them padding."""
    inputs, positions, targets = map(np.asarray, part.batches)
    more = [(0, 0)] * 3 + [(0, length - targets.shape[-1])]
    assert inputs.shape[:3] == (1, 1, rows)
    return Batches(inputs, np.pad(positions, more), np.pad(targets, more, constant_values=IGNORE))


@pytest.fixture(scope="module")
def programs():
    config = mqar_backbone(None, 8, vocab_size=VOCAB, layers=["short_conv"], dropout=0.0)
    model = bj.LanguageModel(config)

    @jax.jit
    def expected_loss(params, inputs, labels):
        logits, _ = model.apply(params, inputs)
        counts = labels != IGNORE
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        return jnp.sum(losses * counts) / jnp.sum(counts)

    grid = Grid(model, LENGTH, weight_decay=0.1)
    return Programs(grid, jax.tree.map(np.asarray, grid.init(RUNS)), expected_loss)


CHOSEN = ["mqar", "parity", "compression", "memorization", "permutations", "selective_copying"]
"""whose batches are drawn by few programs"""


@pytest.mark.parametrize("name", slow_but(CHOSEN, [name for name in TASKS if name != "stacked"], core=[]))
def test_every_task_of_tokens_trains_a_step(name, programs):
    known = task_settings(name).keys() & SETTINGS.keys()
    task = make_task(name, {**{key: SETTINGS[key] for key in known}, "num_examples": ROWS})
    segment, part = task.build(3), load(task, [3])
    batches = of_shape(part, ROWS, LENGTH)
    restored = np.full((ROWS, LENGTH), IGNORE)
    for row, column in zip(*np.nonzero(batches.targets[0, 0] != IGNORE), strict=True):
        restored[row, batches.positions[0, 0, row, column]] = batches.targets[0, 0, row, column]
    np.testing.assert_array_equal(restored, segment.labels)
    before = programs.state
    state, losses = programs.grid.train(jax.tree.map(jnp.array, before), RUNS, 1.0, batches, 0, 1)
    params = jax.tree.map(lambda leaf: leaf[0], before.params)
    expected = programs.expected_loss(params, segment.inputs, segment.labels)
    np.testing.assert_allclose(losses[0], expected, rtol=1e-5)
    _, after = programs.grid.train(state, RUNS, 1.0, batches, 0, 1)
    assert after[0] < losses[0]


@pytest.mark.slow
def test_stacked_trains_a_model_of_vectors():
    """Losses and accuracy against the table, which the step leaves alone."""
    flags = {"task": "stacked:embedding_dim=6", "vocab_size": 10, "pairs": 3, "dropout": 0.0}
    config = synthetic.SyntheticConfig(layers="short_conv", d_model=8, examples=ROWS, loss="mse", **flags)
    (task,), _ = config.segments
    assert task == StackedMQAR(10, ROWS, 3, embedding_dim=6)
    model, table = bj.LanguageModel(config.architecture), np.asarray(task.embeddings())[5:]
    squares, nats = (
        Grid(model, task.length, 0.1, loss, task.label_vectors()) for loss in ("mse", "cross_entropy")
    )
    start, part, segment = squares.init(RUNS), load(task, [0]), task.build(0)
    start = jax.tree.map(np.asarray, start)
    params = jax.tree.map(lambda leaf: leaf[0], start.params)
    np.testing.assert_array_equal(params["params"]["embedding"], table)
    apply = jax.jit(functools.partial(model.apply, method="hidden"), compiler_options=QUICKLY)
    hidden = np.asarray(apply(params, segment.inputs)[0])[:, 3:]
    targets = np.asarray(segment.labels)[:, 3:]
    logits = hidden @ table.T
    squared = np.square(hidden - table[targets]).mean(-1)
    np.testing.assert_allclose(squares.evaluate(start.params, RUNS, part.batches)[0], [
        np.sum(np.mean(squared, axis=1)),
        np.sum(np.mean(logits.argmax(-1) == targets, axis=1)),
    ], rtol=1e-4)  # fmt: skip
    entropy = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    for grid, of_labels in ((squares, squared), (nats, entropy)):
        state, losses = grid.train(jax.tree.map(jnp.array, start), RUNS, 1.0, part.batches, 0, 1)
        np.testing.assert_allclose(losses[0], np.mean(of_labels), rtol=1e-4)
        np.testing.assert_array_equal(state.params["params"]["embedding"][0], table)
        for name in ("project_in", "project_out"):
            moved = np.asarray(state.params["params"][name]["kernel"][0])
            assert np.any(moved != params["params"][name]["kernel"])
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == bj.param_count(config.architecture)


@pytest.mark.release
def test_a_model_of_vectors_keeps_the_contract():
    """Split calls with a state are the whole call; tokens and vectors of another width are refused."""
    config = mqar_backbone(None, 8, vocab_size=5, layers=["short_conv"], dropout=0.0)
    model = bj.LanguageModel(config.replace(input_dim=6, freeze_embedding=True))
    vectors = np.random.default_rng(0).normal(size=(2, 5, 6)).astype(np.float32)
    params, apply = normals(model.init, vectors), jax.jit(model.apply, compiler_options=QUICKLY)
    whole, none = apply(params, vectors)
    first, state = apply(params, vectors[:, :2], model.init_state(2, 5))
    second, _ = apply(params, vectors[:, 2:], state)
    assert none is None
    assert whole.shape == (2, 5, 5)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), whole, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=re.escape("tokens has shape (2, 5): expected (B, N, 6)")):
        model.apply(params, np.zeros((2, 5), np.int32))
    with pytest.raises(ValueError, match="tie_embeddings = False: expected True with input_dim"):
        config.replace(input_dim=6, tie_embeddings=False)


def test_flags_to_tasks():
    config = synthetic.SyntheticConfig(
        task="forgetting:num_updates=1:power=1", pairs=2, length=12, vocab_size=16
    )
    assert config.segments[0] == [Forgetting(16, 100_000, 12, 2, 1, power=1)]
    assert config.settings["vocab_size"] == 16
    config = synthetic.SyntheticConfig(task="parity", train="8:100,16:20", test="32", test_examples=5)
    assert [(task.length, task.num_examples) for task in config.segments[0]] == [(8, 100), (16, 20)]
    assert config.segments[1][0].slices == {"length": 32}
    config = synthetic.SyntheticConfig(task="compositional", random_fill=False)
    assert config.segments[0] == [Compositional(num_examples=100_000, random_fill=False)]
    config = synthetic.SyntheticConfig(mixer="based")
    defaults = {"vocab_size": 8192, "length": 64, "pairs": 4, "power": 0.01, "random_fill": True}
    assert {name: config.settings[name] for name in defaults} == defaults


REFUSED = {
    "--task mqr": "task = 'mqr': expected one of 'mqar', ",
    "--task parity:bits=3": "setting of parity = 'bits': expected one of 'num_examples', 'length'",
    "--task forgetting:power=high": "power of forgetting = 'high': expected a value of type float",
    "--task parity --pairs 3": "pairs = 3: expected none with the task parity, which has num_examples, l",
    "--task mqar:length=32 --length 64": "task = 'mqar:length=32': expected no length, which --length",
    "--task parity:num_examples=3": "expected --examples instead of num_examples",
    "--task parity --train 64:4:10": "train = '64:4:10': expected length:examples, such as",
    "--task stacked --test 64:4": "test = '64:4': expected pairs, such as",
    "--loss mse": "loss = 'mse': expected cross_entropy for a task on tokens",
}


def test_bad_flags():
    for flags, message in REFUSED.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            synthetic.main(["--mixer", "attention", *flags.split()])


RECIPES = sorted((Path(bj.__file__).parent / "recipes" / "synthetic").glob("*.toml"))


def test_every_recipe_trains_a_task():
    """Its segments exist, and the model of the study takes them."""
    assert {path.stem.replace("-", "_") for path in RECIPES} >= TASKS.keys() - {"mqar", "recall_probe"}
    for path in RECIPES:
        words = ["--recipe", f"recipes/synthetic/{path.name}", "--layers", "attention"]
        config = parse(synthetic.SyntheticConfig, with_recipe(words, synthetic.SyntheticConfig), prog="test")
        train, test = config.segments
        assert config.runs
        assert config.architecture.num_layers == 1
        least = 256 if "MAD" in path.read_text() else 100_000
        assert sum(task.num_examples for task in train) >= least, path
        assert {task.num_examples for task in test} <= {1000, 1280, 3000}
