"""The classification command end to end: learns, fine-tunes, stops and resumes, reports, bad input."""

import json
import math
import signal

import chex
import jax
import numpy as np
import pytest

from based_jax import load_pretrained
from based_jax.convert.classifier import load_classifier, save_classifier
from based_jax.data import NucleotideTokenizer, load_tokenizer
from based_jax.data.labelled import LabelledRows, load_labelled
from based_jax.models import LanguageModel, SequenceClassifier
from based_jax.training.commands import classify, lm
from based_jax.training.loop import BadLoss, Outcome
from based_jax.training.optimizer import OptimizerConfig
from based_jax.training.run.metrics import read_metrics
from tests.commands import run_here
from tests.training.runs import stop_at

EPOCHS = 4


@pytest.fixture(scope="module")
def dna(tmp_path_factory):
    """Sequences of many A or of many T, of 8 to 16 bases: 96 to learn from, 48 to test on."""
    root = tmp_path_factory.mktemp("data") / "human_enhancers_cohn"
    rng = np.random.default_rng(0)
    for part, count in (("train", 48), ("test", 24)):
        for label, shares in (("a_rich", (0.4, 0.2, 0.2, 0.2)), ("t_rich", (0.2, 0.2, 0.2, 0.4))):
            (root / part / label).mkdir(parents=True)
            for number in range(count):
                text = "".join(rng.choice(list("ACGT"), rng.integers(8, 17), p=shares))
                (root / part / label / f"{number}.txt").write_text(text)
    return root


@pytest.fixture(scope="module", autouse=True)
def compiled_losses():
    """One program for the losses of a batch in place of one for each operation."""
    name = "softmax_cross_entropy_with_integer_labels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classify.optax, name, jax.jit(getattr(classify.optax, name)))
        yield


@pytest.fixture(scope="module")
def preset(tiny_config, tmp_path_factory):
    path = tmp_path_factory.mktemp("preset") / "layer.json"
    path.write_text(tiny_config.replace(schedule="L", vocab_size=6, max_length=16).to_json())
    return str(path)


@pytest.fixture(scope="module")
def settings(dna, preset):
    return {
        "data": str(dna),
        "preset": preset,
        "epochs": EPOCHS,
        "batch_size": 16,
        "validation": 0.25,
        "log_every": 1,
        "optimizer": OptimizerConfig(learning_rate=2e-2, warmup=0.1),
    }


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, classify.train(classify.ClassifyConfig(workdir=workdir, **settings))


@pytest.mark.release
def test_it_learns_and_says_how_well(finished, dna):
    workdir, results = finished
    assert 0.75 < results["test_accuracy"] < 1
    share = results["test_accuracy"]
    assert results["standard_error"] == pytest.approx(math.sqrt(share * (1 - share) / 48))
    assert (results["test_sequences"], results["classes"]) == (48, ["a_rich", "t_rich"])
    assert json.loads((workdir / "results.json").read_text()) == results
    lines = read_metrics(workdir / "metrics.jsonl")
    steps_per_epoch = -(-72 // 16)
    assert [line["step"] for line in lines] == list(range(1, EPOCHS * steps_per_epoch + 1))
    assert lines[-1]["loss"] < lines[0]["loss"] < 1.0
    evaluated = [line["eval_accuracy"] for line in lines if "eval_accuracy" in line]
    assert len(evaluated) == EPOCHS
    assert max(evaluated) == results["validation_accuracy"]


@pytest.mark.release
def test_an_epoch_that_diverges_is_not_the_best(settings, tmp_path, monkeypatch):
    """Of NaN logits all are the first class, maybe that of most sequences."""
    found, saved = [{"accuracy": 0.6, "loss": 0.7}, {"accuracy": 0.9, "loss": math.nan}], []
    monkeypatch.setattr(classify, "accuracy", lambda *_: found.pop(0))
    monkeypatch.setattr(classify, "save_classifier", lambda *given: saved.append(given))
    with pytest.raises(BadLoss, match="held out loss nan"):
        classify.train(classify.ClassifyConfig(workdir=tmp_path / "run", **settings))
    assert len(saved) == 1


@pytest.mark.slow
def test_the_saved_classifier_is_the_best_epochs_and_gives_the_reported_accuracy(finished, dna):
    workdir, results = finished
    model, params, classes = load_classifier(workdir / "model")
    tokenizer = load_tokenizer(workdir / "model")
    assert isinstance(tokenizer, NucleotideTokenizer)
    assert classes == ("a_rich", "t_rich")
    train, test = load_labelled(dna, tokenizer)
    apply, right = jax.jit(model.apply), {}
    for name, part in (("validation", train.split(0.25, 1111)[1]), ("test", test)):
        rows = LabelledRows(part, 16)
        batch = next(rows.in_order(48))
        logits, _ = apply(params, batch["inputs"], mask=batch["input_mask"])
        right[name] = np.mean((np.argmax(np.asarray(logits), -1) == batch["targets"])[: len(rows)])
    assert right["test"] == results["test_accuracy"]
    assert right["validation"] == results["validation_accuracy"]


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_numbers(finished, settings, tmp_path):
    """In the directory of a run that ended before its first checkpoint."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 6, "eval_accuracy": 1.0}\n')
    with pytest.MonkeyPatch.context() as patch:
        stop_at(8, patch, signal.SIGINT)
        outcome = classify.train(classify.ClassifyConfig(workdir=tmp_path, **settings))
    assert isinstance(outcome, Outcome)
    assert 8 <= outcome.step < 12
    assert classify.main(["--resume", "--workdir", str(tmp_path)]) == 0
    again, whole = (read_metrics(path / "metrics.jsonl") for path in (tmp_path, finished[0]))
    assert [line["loss"] for line in again] == [line["loss"] for line in whole]
    assert json.loads((tmp_path / "results.json").read_text()) == finished[1]


@pytest.mark.slow
def test_fine_tuning_begins_with_the_language_model(settings, preset, dna, tmp_path):
    """A run of no length: the body it saves is the checkpoint's, but for one small step."""
    language_model = lm.LMConfig(
        workdir=tmp_path / "lm",
        preset=preset,
        tokenizer="dna",
        data=str(dna / "train" / "**" / "*.txt"),
        steps=2,
        batch_size=4,
        eval_every=0,
        length=16,
    )
    lm.train(language_model)
    changes = {
        "preset": None,
        "checkpoint": str(tmp_path / "lm"),
        "steps": 1,
        "batch_size": 96,
        "validation": 0.0,
        "optimizer": OptimizerConfig(learning_rate=1e-6),
    }
    classify.train(classify.ClassifyConfig(workdir=tmp_path / "run", **{**settings, **changes}))
    before, after = (load_pretrained(tmp_path / name)[1] for name in ("lm", "run"))
    assert jax.tree.structure(before) == jax.tree.structure(after)
    moved = jax.tree.map(lambda old, new: np.abs(old - new).max(), before, after)
    assert 0 < max(jax.tree.leaves(moved)) < 2e-6


# --- the files of a classifier


def test_a_classifier_survives_the_round_trip(tiny_config, tmp_path):
    model = SequenceClassifier(tiny_config.replace(schedule="L"), 3, "last")
    params = jax.jit(model.init)(jax.random.key(0), np.zeros((1, 1), np.int32))
    save_classifier(tmp_path, model, params, ("a", "b", "c"))
    loaded, same, classes = load_classifier(tmp_path)
    assert loaded == model
    assert classes == ("a", "b", "c")
    chex.assert_trees_all_equal(same, classify.nn.meta.unbox(params))
    assert isinstance(load_pretrained(tmp_path)[0], LanguageModel)
    with pytest.raises(ValueError, match=r"classes = .*expected 3 names"):
        save_classifier(tmp_path, model, params, ("a", "b"))
    with pytest.raises(FileNotFoundError, match=r"there is no classifier\.json"):
        load_classifier(tmp_path / "nowhere")
    (tmp_path / "classifier.json").write_text('{"version": 1, "classes": ["a", "b"], "pooling": "mean"}')
    with pytest.raises(ValueError, match=r"classifier\.safetensors = .*expected"):
        load_classifier(tmp_path)


# --- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--preset", "no-such"], "preset = 'no-such': expected"),
        (["--checkpoint", "runs/a"], "checkpoint = 'runs/a': expected either this or --preset"),
        (["--data", "/no/such/file"], "/no/such/file"),
        (["--validation", "1"], "classify: validation = 1.0: expected at least 0 and below 1"),
        (["--pooling", "max"], "pooling = 'max': expected one of 'mean', 'last'"),
        (["--epochs", "0"], "epochs = 0: expected at least 1"),
        (["--seed", str(2**64)], f"seed = {2**64}: expected at most {2**32 - 1}"),
        (["--tokenizer", "no-such"], "tokenizer = 'no-such': expected 'byte', 'dna'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(change, message, settings, tmp_path, capsys):
    given = ["--workdir", str(tmp_path), "--data", settings["data"], "--preset", settings["preset"], *change]
    ended = run_here(classify.PROG, classify.main, given, capsys)
    assert ended.status == 2
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("based-jax train classify: ")
    assert message in last
