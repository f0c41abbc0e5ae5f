"""The MQAR sweep: learning, equality with runs alone, resume, failed runs, labels, bad input."""

import json
import signal

import chex
import jax
import numpy as np
import optax
import pytest

import based_jax as bj
from based_jax.data.tasks import IGNORE, MQAR, Segment
from based_jax.evals.label_scores import LabelScorer
from based_jax.files import read_lines
from based_jax.mixers.long_filters import position_features
from based_jax.models import MixerSpec, mqar_backbone
from based_jax.training.commands import mqar, synthetic
from based_jax.training.mqar import grid as mqar_grid
from based_jax.training.mqar import sweep as mqar_sweep
from based_jax.training.mqar.grid import data_seeds, load
from based_jax.training.run.metrics import MetricWriter, read_metrics
from tests.commands import run_here
from tests.training.runs import losses, stop_at

SETTINGS = {"layers": "short_conv,attention", "d_model": 16, "vocab_size": 16, "length": 8, "pairs": 2}
SETTINGS |= {"examples": 1000, "test_examples": 150, "epochs": 4, "batch_size": 32, "test": "8:1,8:2"}
SETTINGS |= {"learning_rates": "1e-2,1e38", "seeds": "0,1", "stop_above": 0.76, "log_every": 16}
SETTINGS |= {"dropout": 0.02, "random_fill": False}


def run(workdir, **changes) -> mqar_sweep.Outcome:
    return synthetic.train_synthetic(synthetic.SyntheticConfig(workdir=workdir, **{**SETTINGS, **changes}))


def results(workdir) -> list[dict]:
    return [{**line, "seconds": 0} for line in read_lines(workdir / "results.jsonl", {})[0]]


def accuracy_of(workdir, pairs: int = 2, test_examples: int = SETTINGS["test_examples"]) -> float:
    """Accuracy of the weights in model/ on the test of the last segment; seed 0."""
    model, params = bj.load_pretrained(workdir)
    task = MQAR(16, test_examples, 8, pairs, random_fill=False)
    segment = task.build(data_seeds(0, 1, 1)[1][0])
    scorer = LabelScorer(jax.jit(lambda tokens: model.apply(params, tokens)[0]), 8, 16)
    return scorer(segment.inputs, segment.labels).correct.mean()


@pytest.fixture(scope="module", autouse=True)
def traced_once():
    """Grids of the same model share their programs: tracing these anew takes most of a run's time."""
    compiled, programs = mqar_grid.Grid._compiled, {}

    def once(self, function, *arguments, **options):
        key = function.__name__, self.model, self.length, self.weight_decay, mqar_grid.MAX_LOGITS
        if key not in programs:
            programs[key] = compiled(self, function, *arguments, **options)
        return programs[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mqar_grid.Grid, "_compiled", once)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("mqar")
    return workdir, run(workdir)


@pytest.mark.release
def test_a_small_grid_from_its_start_to_its_end(tmp_path, monkeypatch):
    """One layer, one learning rate, and a second call, which finds everything done."""
    small = {"layers": "short_conv", "d_model": 8, "examples": 60, "test_examples": 30, "epochs": 2}
    small |= {"learning_rates": "1e-2", "seeds": "0", "test": "8:2", "log_every": 2}
    outcome = run(tmp_path, **small)
    (record,) = outcome.records
    assert (outcome.stopped_by, record["status"], record["seed"]) == (None, "finished", 0)
    assert record["slices"]["num_pairs"] == {"2": record["accuracy"]}
    assert [step for step, _ in record["curve"]] == [2, 4]
    assert record["curve"][-1][1] == record["accuracy"]
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [2, 4]
    assert lines[1]["loss"] < lines[0]["loss"]
    assert {"best_accuracy", "eval_loss", "tokens_per_second", "examples_per_second"} <= {*lines[1]}
    assert results(tmp_path) == [{**record, "seconds": 0}]
    config = json.loads((tmp_path / "config.json").read_text())
    architecture = synthetic.SyntheticConfig(**{**SETTINGS, **small}).architecture
    assert bj.ModelConfig.from_dict(config["model"]) == architecture
    assert accuracy_of(tmp_path, test_examples=30) == pytest.approx(record["accuracy"])
    with monkeypatch.context() as patch:
        patch.setattr(mqar_sweep, "Grid", None)
        assert run(tmp_path, **small).records == outcome.records
    with pytest.raises(ValueError, match=r"batch_size = 8: expected 32 as .* or another workdir"):
        run(tmp_path, **small, batch_size=8)
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"workdir = .*: expected a checkpoint of the 1 runs without a rec"):
        run(tmp_path, **small)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config.json = .*: expected a file"):
        run(tmp_path, **small)


@pytest.mark.slow
def test_a_grid_learns_but_for_the_rate_that_diverges(finished):
    outcome = finished[1]
    assert outcome.stopped_by is None
    failed = [record for record in outcome.records if record["status"] == "failed"]
    assert [(record["learning_rate"], record["seed"]) for record in failed] == [(1e38, 0), (1e38, 1)]
    assert all(record["accuracy"] is record["loss"] is record["slices"] is None for record in failed)
    good = [record for record in outcome.records if record["status"] != "failed"]
    assert [record["seed"] for record in good] == [0, 1]
    for record in good:
        assert record["learning_rate"] == 1e-2
        assert record["accuracy"] > 0.55
        assert record["status"] == ("stopped" if record["accuracy"] > SETTINGS["stop_above"] else "finished")
        assert record["slices"]["length"]["8"] == pytest.approx(record["accuracy"])
        by_pairs = record["slices"]["num_pairs"]
        assert by_pairs["1"] > by_pairs["2"]
        assert (by_pairs["1"] + by_pairs["2"]) / 2 == pytest.approx(record["accuracy"])
        assert record["parameters"] > 0
        assert record["state_size"] > 0
        assert record["state_bytes"] > 0
    assert good[0]["accuracy"] != good[1]["accuracy"]


@pytest.mark.slow
def test_a_lane_does_not_depend_on_the_others(finished, tmp_path):
    """The same numbers beside another seed, in another lane, up to rounding that training amplifies."""
    run(tmp_path, learning_rates="1e-2", seeds="1,2", stop_above=0.01, test="8:2")
    tag = "lr-0.01-seed-1"
    ours, theirs = (
        [line.get(f"loss/{tag}") for line in read_metrics(directory / "metrics.jsonl")]
        for directory in (finished[0], tmp_path)
    )
    assert len(theirs) == 2
    np.testing.assert_allclose(ours[:2], theirs, rtol=2e-5)


@pytest.mark.slow
def test_an_interrupted_sweep_continues_where_it_was(finished, tmp_path, monkeypatch, capsys):
    """Ctrl-C between two epochs, and a crash before the next checkpoint: the results are the same numbers."""
    with monkeypatch.context() as patch:
        stop_at(48, patch, signal.SIGINT)
        assert run(tmp_path).stopped_by == signal.SIGINT
    assert "saved step 48" in " ".join(capsys.readouterr().err.split())
    write = MetricWriter.write

    def crashing(self, step, *arguments):
        write(self, step, *arguments)
        if step == 80:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MetricWriter, "write", crashing)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert run(tmp_path).stopped_by is None
    assert results(tmp_path) == results(finished[0])
    assert losses(tmp_path) == losses(finished[0])


def labelled() -> Segment:
    """Five examples with none to three labels."""
    labels = np.full((5, 6), IGNORE)
    labels[0, 1], labels[1, [0, 5]], labels[3, [2, 3, 4]], labels[4, 0] = 7, [1, 2], [3, 4, 5], 6
    return Segment(np.arange(30).reshape(5, 6) % 11, labels, {"kind": 1})


class Labelled(MQAR):
    def build(self, seed):
        return labelled()


def test_batches_hold_every_label_once():
    part = load(Labelled(), [0, 0], rows=2)
    assert (part.steps, part.length, part.examples) == (3, 6, 5)
    assert [part.examples_between(*steps) for steps in ((0, 2), (2, 3), (0, 3))] == [4, 1, 5]
    label_positions, targets = (
        np.asarray(array)[1].reshape(6, 3) for array in (part.batches.positions, part.batches.targets)
    )
    restored = np.full((6, 6), IGNORE)
    for row, column in zip(*np.nonzero(targets != IGNORE), strict=True):
        restored[row, label_positions[row, column]] = targets[row, column]
    np.testing.assert_array_equal(restored[:5], labelled().labels)
    assert np.all(restored[5] == IGNORE)
    assert load(Labelled(), [0], tokens=13).batches.inputs.shape == (1, 3, 2, 6)


def test_train_and_test_seeds_never_meet():
    train, test = data_seeds(3, 5, 7)
    assert (train, test) == data_seeds(3, 5, 7)
    assert max(train) < 2**30 <= min(test)
    assert train != data_seeds(4, 5, 7)[0]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [2**24, 64])
def test_a_step_is_adamw_on_the_loss_of_all_logits(limit, monkeypatch):
    """The positions of BaseConv's filter are a buffer in the authors' code: nothing moves them."""
    monkeypatch.setattr(mqar_grid, "MAX_LOGITS", limit)
    layer = MixerSpec("base_conv", {"kernel_size": -1, "l_max": 6})
    model = bj.LanguageModel(mqar_backbone(None, 4, vocab_size=11, layers=[layer], dropout=0.0))
    grid = mqar_grid.Grid(model, length=6, weight_decay=0.1)
    vmapped = mqar_grid.VmappedRuns(
        np.full(1, 0.1, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.int32)
    )
    part, state = load(Labelled(), [0]), grid.init(vmapped)
    sums = grid.evaluate(state.params, vmapped, part.batches)
    before = jax.tree.map(lambda leaf: np.array(leaf[0]), state.params)

    def of_all_logits(params):
        logits, _ = model.apply(params, labelled().inputs)
        counts = labelled().labels != IGNORE
        safe = np.maximum(labelled().labels, 0)
        losses = counts * optax.softmax_cross_entropy_with_integer_labels(logits, safe)
        return losses.sum() / 7, (losses, counts & (logits.argmax(-1) == safe))

    program = jax.jit(jax.value_and_grad(of_all_logits, has_aux=True))
    (loss, (losses, hits)), gradients = jax.tree.map(np.asarray, program(before))
    counts = np.array([1, 2, 1, 3, 1])  # the example without labels has no loss
    np.testing.assert_allclose(sums[0, 0], np.sum(losses.sum(1) / counts), rtol=1e-5)
    np.testing.assert_allclose(sums[0, 1], np.sum(hits.sum(1) / counts), rtol=1e-6)

    state, trained = grid.train(state, vmapped, 0.5, part.batches, 0, 1)
    np.testing.assert_allclose(trained[0], loss, rtol=1e-6)
    assert int(state.step) == 1
    after, mean = (
        jax.tree.map(lambda leaf: np.array(leaf[0]), x) for x in (state.params, state.opt_state.mu)
    )
    ours = jax.tree.map(lambda mean: mean / np.float32(1 - 0.9), mean)
    chex.assert_trees_all_close(ours, gradients, rtol=1e-4, atol=1e-6)
    first = jax.tree.map(lambda x, g: x - 0.05 * (g / (abs(g) + 1e-8) + 0.1 * x), before, ours)
    constants = [tree["params"]["layers_0"]["mixer"]["filter"] for tree in (before, first, after)]
    for tree in constants[::2]:
        np.testing.assert_array_equal(tree["embedding"], position_features(6, 3).astype(np.float32))
    constants[1]["embedding"] = constants[0]["embedding"]
    chex.assert_trees_all_close(after, first, rtol=1e-4, atol=2e-6)


def test_flags_to_segments_and_layers():
    config = synthetic.SyntheticConfig(
        train="64:4:100,128:8:20", test="64:4,1024:256", layers="gated_conv,gla:num_heads=1"
    )
    train, test = config.segments
    assert train == [MQAR(8192, 100, 64, 4), MQAR(8192, 20, 128, 8)]
    assert test == [MQAR(8192, 3000, 64, 4), MQAR(8192, 3000, 1024, 256)]
    assert config.longest == 1024
    assert [spec.mixer for spec in config.architecture.mixers.values()] == ["gated_conv", "gla"]
    assert config.architecture.layer(1).options["num_heads"] == 1


REFUSED = {
    "": "mixer = None: expected a mixer's name, unless layers are given",
    "--mixer lstm": "mixer = 'lstm': expected package.module:Class, or one of based, attention",
    "--mixer based:depth=3": "option of linear_attention = 'depth'",
    "--mixer based --pairs 40": "length = 64: expected",
    "--mixer based --vocab-size 16": "vocab_size = 16: expected",
    "--mixer based --train 64:4": "train = '64:4': expected length:pairs:examples",
    "--mixer based --test 64:x": "test = '64:x': expected length:pairs, such as 64:4",
    "--mixer based --learning-rates fast": "learning_rates = 'fast': expected numbers",
    "--mixer based --learning-rates 1,1": "one or more different values",
    "--mixer based --seeds=-1": "seeds = (-1,): expected integers in [0, 2^32)",
    f"--mixer based --epochs {2**64}": f"epochs = {2**64}: expected at most 2147483647",
    "--mixer based --epochs 0": "epochs = 0: expected at least 1",
    "--mixer based --dropout 1": "embed_dropout = 1.0: expected from 0 to below 1",
    "--no-such-flag": "--no-such-flag",
}


@pytest.mark.release
def test_bad_input_is_one_line_and_status_2(tmp_path, capsys):
    for flags, message in REFUSED.items():
        ended = run_here(mqar.PROG, mqar.main, [*flags.split(), "--workdir", tmp_path], capsys)
        assert ended.status == 2
        last = ended.err.strip().splitlines()[-1]
        assert last.startswith("based-jax train mqar: ")
        assert message in last
    assert not list(tmp_path.iterdir())
