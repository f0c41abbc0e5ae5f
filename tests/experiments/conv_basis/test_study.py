"""The study: what it reads off a model, its training, its command, and the results that are kept here."""

import dataclasses
import json
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import based_jax as bj
from based_jax import plot
from based_jax.command import parse
from based_jax.data import ByteTokenizer, Document, PackedTokens
from based_jax.experiments.conv_basis import __main__ as study
from based_jax.experiments.conv_basis import heads, replaced, report, training
from based_jax.experiments.conv_basis.approximations import UNIFORM, attend
from based_jax.experiments.conv_basis.settings import SETTINGS
from based_jax.experiments.slots import Slot
from based_jax.training.lm_config import LMConfig
from tests.conftest import ROOT
from tests.tolerances import FLOAT32, assert_close

SMALL = dataclasses.replace(
    SETTINGS["smoke"], length=24, width=8, terms=(2, 24), window=16, window_terms=(16,), texts=1, steps=1
)

# Takes the trainer's flags, writes what `train.lm` does; a second step is too much for it.
TRAINER = """
import json, pathlib, sys
flags = dict(zip(sys.argv[1:], sys.argv[2:]))
workdir, steps = pathlib.Path(flags["--workdir"]), int(flags["--steps"])
if steps > 1:
    sys.exit("no memory left")
line = {"step": steps, "loss": 1.0, "tokens_per_second": 1.0, "eval_loss": 0.5}
(workdir / "metrics.jsonl").write_text(json.dumps(line) + chr(10))
(workdir / "model").mkdir()
"""


@pytest.fixture(scope="module")
def model():
    """Untrained, one layer of two heads: a model and its parameters, with weights that matter."""
    made = bj.LanguageModel(training.model_config(SMALL).replace(schedule="A", mlp="none"))
    shapes = nn.unbox(jax.eval_shape(made.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))
    rng = np.random.default_rng(0)
    return made, jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)


def test_what_is_read_off_a_model_makes_its_outputs(model):
    made, params = model
    tokens = np.random.default_rng(0).integers(0, 256, (2, 9))
    captured = heads.look(made, params, tokens)
    assert captured.q.shape == (1, 2, 9, 2, 8)
    found = heads.by_head(captured)
    assert list(found) == ["layer 1, head 1", "layer 1, head 2"]
    y = np.stack([[attend(q @ k.T, v) for q, k, v in texts] for texts in found.values()])

    @jax.jit
    def outputs(params):
        how = {
            "capture_intermediates": lambda module, method: module.name == "mixer" and method == "__call__"
        }
        return made.apply(params, jnp.asarray(tokens), mutable=["intermediates"], **how)[1]

    kept = outputs(params)
    (expected, _), *_ = kept["intermediates"]["layers_0"]["mixer"]["__call__"]
    weight = params["params"]["layers_0"]["mixer"]["out"]["kernel"]
    assert_close(np.einsum("hbnv,hvd->bnd", y, weight), expected, FLOAT32)
    assert heads.first_scores(captured)["layer 1, head 2"].shape == (9, 9)


def test_texts_are_parts_of_a_document_each():
    documents = [Document(name, text) for name, text in (("a", "x" * 50), ("b", "y" * 30), ("c", "z" * 9))]
    packed = PackedTokens.from_documents(documents, ByteTokenizer())
    tokens = heads.texts(packed, 3, 8)
    assert tokens.shape == (3, 8)
    for row in tokens:
        assert len(set(row) - {ByteTokenizer.eot}) == 1
    with pytest.raises(ValueError, match="texts = 99: expected at most"):
        heads.texts(packed, 99, 8)


def test_as_many_segments_or_keys_as_tokens_are_attention(model):
    packed = PackedTokens.from_documents([Document("a", "Some text.\n" * 3)], ByteTokenizer())
    found = {row["line"]: row["points"] for row in replaced.rows(SMALL, *model, packed)}
    ((_, exact),) = found[replaced.EXACT]
    assert exact > 1
    assert found["equal starts"] == [(16, pytest.approx(exact, rel=1e-5))]
    assert found[replaced.WINDOW_LINE] == [(16, pytest.approx(exact, rel=1e-5))]
    ((count, geometric),) = found["geometric starts"]
    assert 1 < count < 16
    ((_, uniform),) = found[UNIFORM]
    assert len({round(bits, 4) for bits in (exact, geometric, uniform)}) == 3


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """Words of a process that stands for the trainer."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    monkeypatch.setattr(training, "find_slots", lambda count: [Slot("0", {})])
    return sys.executable, str(script)


def test_training_is_done_once(tmp_path, trainer):
    said: list[str] = []
    out = tmp_path / "out"
    out.mkdir()
    export = training.train(SMALL, out, said.append, trainer)
    assert export.is_dir()
    assert "perplexity 1.649" in said[-1]
    assert json.loads((out / "models/attention.json").read_text())["schedule"] == "AA"
    lines = len(said)
    assert training.train(SMALL, out, said.append, ("no such program",)) == export
    assert len(said) == lines
    export.rmdir()  # the record alone is not enough
    assert training.train(SMALL, out, said.append, trainer) == export
    assert len(report.read(out / training.RECORD)) == 1
    more = dataclasses.replace(SMALL, steps=2)
    with pytest.raises(OSError, match="training failed: no memory left"):
        training.train(more, out, said.append, trainer)


def test_the_trainer_takes_the_flags():
    flags = training.job(SETTINGS["cpu"]).arguments[2:]
    config = parse(LMConfig, [*flags, "--workdir", "a"], prog="test")
    assert (config.length, config.steps, config.held_out) == (128, 1500, training.FRACTION)


def test_the_command_draws_and_keeps_its_directory(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    flags = ["--out", str(out), "--only", "pictures"]
    assert study.main(flags) == 0
    assert capsys.readouterr().out.split() == [str(out / "README.md")]
    for name in ("sum.png", "masks.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in (out / "README.md").read_text()
    with pytest.raises(ValueError, match="another study or scale"):
        study.main([*flags, "--scale", "cpu"])
    with pytest.raises(SystemExit):
        study.main(["--only", "pictures,everything"])
    assert "only = 'everything': expected one of 'structured'" in capsys.readouterr().err
    monkeypatch.setattr(training, "train", lambda *_: signal.SIGINT)
    assert study.main(["--out", str(out), "--only", "trained"]) == 128 + signal.SIGINT
    assert "the same command continues" in capsys.readouterr().err


def test_without_matplotlib_there_is_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plot, "missing", lambda: "no figure")
    assert study.main(["--out", str(tmp_path), "--only", "pictures"]) == 0
    assert "no figure" in capsys.readouterr().err
    assert "png" not in (tmp_path / "README.md").read_text()


@pytest.mark.slow
def test_the_whole_command(tmp_path, unchecked):
    """At its smallest scale, with the real trainer, twice."""
    out = tmp_path / "out"
    for _ in range(2):
        assert study.main(["--out", str(out)]) == 0
        texts = {path.name: path.read_text() for path in out.glob("*.jsonl")}
        assert set(texts) == {"structured.jsonl", "curves.jsonl", "trained.jsonl", "training.jsonl"}
        page = (out / "README.md").read_text()
        assert all(name in page for name in report.FIGURES)


KEPT = ROOT / "results" / "conv_basis"


def test_the_page_that_is_kept_here_is_of_the_records(tmp_path):
    for path in KEPT.iterdir():
        if path.suffix in (".jsonl", ".png"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    text = report.write("cpu", tmp_path).read_text()
    assert text.replace(str(tmp_path), "results/conv_basis") == (KEPT / "README.md").read_text()


def test_the_results_that_are_kept_here():
    """What the documentation says: exact and within the bounds where there is a basis, nothing elsewhere."""
    for row in report.read(KEPT / "structured.jsonl"):
        double, single = row["float64"], row["float32"]
        assert double["right"]
        assert single["right"]
        assert double["output_error"] <= double["output_bound"] + 1e-11
        assert single["output_error"] <= double["output_bound"] + 1e-5
        assert double["output_bound"] <= double["paper_bound"]
        assert double["score_error"] <= 2 * row["noise"] + 1e-9
    found = {(row["input"], row["line"]): row["points"] for row in report.read(KEPT / "curves.jsonl")}
    ((_, uniform, _),) = found["independent tokens", UNIFORM]
    few = [error for count, error, _ in found["independent tokens", "equal, anchors"] if count <= 256]
    assert min(few) > uniform
    errors = {count: error for count, error, _ in found["8 segments, noise 0.5", "recovered, anchors"]}
    assert errors[8] < 0.2
    for row in report.read(KEPT / "trained.jsonl"):
        if "terms" in row:
            assert min(row["terms"].values()) > 0.9 * row["length"]
