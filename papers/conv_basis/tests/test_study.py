"""The study: what it reads off a model, its training, its command, and the results that are kept here."""

import dataclasses
import json
import re
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import based_jax as bj
from based_jax import ops
from based_jax.data import ByteTokenizer, Document, PackedTokens
from based_jax.experiments.runner import Slot
from papers.conv_basis import __main__ as study
from papers.conv_basis import heads, inputs, recovered, replaced, report, training
from papers.conv_basis.approximations import UNIFORM, attend
from papers.conv_basis.settings import SETTINGS
from tests.floors import ROOT
from tests.tolerances import FLOAT32, assert_close

SMALL = dataclasses.replace(
    SETTINGS["smoke"], length=24, width=8, terms=(2, 24), window=16, window_terms=(4, 16), texts=1, steps=1
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

    def is_mixer(module, method):
        return (module.name, method) == ("mixer", "__call__")

    how = {"mutable": ["intermediates"], "capture_intermediates": is_mixer}
    kept = jax.jit(lambda params: made.apply(params, tokens, **how)[1])(params)
    (expected, _), *_ = kept["intermediates"]["layers_0"]["mixer"]["__call__"]
    weight = params["params"]["layers_0"]["mixer"]["out"]["kernel"]
    assert_close(np.einsum("hbnv,hvd->bnd", y, weight), expected, FLOAT32)
    assert heads.first_scores(captured)["layer 1, head 2"].shape == (9, 9)


@pytest.fixture(scope="module")
def texts(model):
    """Two texts for the model."""
    packed = PackedTokens.from_documents([Document("a", "Some text.\n" * 4)], ByteTokenizer())
    return replaced.Texts.of(SMALL, *model, packed)


@pytest.fixture(scope="module")
def found(texts):
    return {row["line"]: row["points"] for row in replaced.rows(SMALL, texts)}


@pytest.mark.slow
def test_as_many_segments_or_keys_as_tokens_are_attention(model, texts, found):
    made, params = model

    @jax.jit
    def loss(params):
        log_p = jax.nn.log_softmax(made.apply(params, texts.inputs)[0])
        return -jnp.take_along_axis(log_p, texts.targets[..., None], axis=-1).mean() / np.log(2)

    exact = pytest.approx(float(loss(params)), rel=1e-5)
    nothing = pytest.approx(0, abs=1e-5)
    assert found[replaced.EXACT] == [(0, exact, nothing)]
    for line in ("equal starts", replaced.WINDOW_LINE):
        (four, bits, error), everything = found[line]
        assert (four, everything) == (4, (16, exact, nothing))
        assert bits != exact
        assert error > 0.1
    assert 1 < found["geometric starts"][-1][0] < 16
    assert found[UNIFORM][0][1] != exact


def test_recover_finds_the_first_segments_of_a_basis():
    case = inputs.rotary_segments(np.random.default_rng(0), 48, 8)
    q, k = (jnp.asarray(x, jnp.float32)[None, :, None] for x in (case.q, case.k))
    _, sizes = ops.conv_decompose(np.tril(case.q @ case.k.T), 1e-6)
    assert (48 - sizes).tolist() == case.starts.tolist()
    bounds = recovered.Bounds(4, 0.01)
    assert (bounds.delta, bounds.epsilon) == pytest.approx((0.04, 0.002))
    assert bounds.threshold == pytest.approx(0.6 * bounds.delta)
    for search in recovered.SEARCHES:
        starts = recovered.recovered(q, k, 3, bounds.threshold, 4, search)[0, 0]
        assert starts.shape == (45,)
        assert starts.tolist()[:4] == [*case.starts[:3], 48]


@pytest.mark.slow
def test_recover_in_a_model(texts, found, monkeypatch):
    """Corollary 4.5 is exact; the best T and delta of each head have no larger error than any other."""
    monkeypatch.setattr(recovered, "GAPS", (0.0, 1e6))
    monkeypatch.setattr(recovered, "WIDTHS", (1, 8))
    monkeypatch.setattr(recovered, "SEARCHES", {"binary": "Recover"})
    rows = recovered.rows(SMALL, texts)
    bits = pytest.approx(found[replaced.EXACT][0][1], rel=1e-5)
    every, one, short, *_ = (row for row in rows if row["line"] == "Recover")
    assert every["points"][-1] == (16, bits, pytest.approx(0, abs=1e-5))
    assert (every["bases"], every["within"]) == ([15, 15, 15], 1)  # the range ends at column N - T
    assert (short["bases"], short["within"]) == ([8, 8, 8], 0)
    assert (one["bases"], one["within"]) == ([1, 1, 1], 1)
    assert one["points"][0][1:] == one["points"][1][1:]
    assert one["points"][0][2] > 0.1
    assert rows[-1]["line"] == recovered.PER_HEAD
    least = {count: error for count, _, error in rows[-1]["points"]}
    searched = [point for row in rows if row["line"] == "Recover" for point in row["points"]]
    assert all(least[k] <= error + 1e-6 for k, _, error in searched)


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


@pytest.mark.slow
def test_the_command_draws_and_keeps_its_directory(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    flags = ["--out", str(out), "--only", "pictures"]
    assert study.main(flags) == 0
    assert capsys.readouterr().out.split() == [str(out / "README.md")]
    for path in KEPT.glob("*.jsonl"):
        (out / path.name).write_bytes(path.read_bytes())
    assert study.main(flags) == 0
    for name in ("curves.png", "trained.png", "recovered.png"):
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


@pytest.mark.slow
def test_the_whole_command(tmp_path, unchecked):
    """At its smallest scale, with the real trainer, twice."""
    out = tmp_path / "out"
    for _ in range(2):
        assert study.main(["--out", str(out)]) == 0
        texts = {path.name: path.read_text() for path in out.glob("*.jsonl")}
        names = ("structured", "curves", "trained", "recovered", "training")
        assert set(texts) == {f"{name}.jsonl" for name in names}
        page = (out / "README.md").read_text()
        assert all(name in page for name in report.FIGURES)


KEPT = ROOT / "papers" / "conv_basis" / "results"


def test_the_page_that_is_kept_here_is_of_the_records(tmp_path):
    for path in KEPT.iterdir():
        if path.suffix in (".jsonl", ".png"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    text = report.write("cpu", tmp_path).read_text()
    assert text.replace(str(tmp_path), str(KEPT.relative_to(ROOT))) == (KEPT / "README.md").read_text()


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
    few = [error for count, error, _ in found["independent tokens", "equal, anchors"] if count <= 256]
    assert min(few) > found["independent tokens", UNIFORM][0][1]
    errors = {count: error for count, error, _ in found["8 segments, noise 0.5", "recovered, anchors"]}
    assert errors[8] < 0.2
    for row in report.read(KEPT / "trained.jsonl"):
        if "terms" in row:
            assert min(row["terms"].values()) > 0.9 * row["length"]


def recover_phrases():
    """What papers/conv_basis/README.md says in sentences, from the records."""
    trained = [row for row in report.read(KEPT / "trained.jsonl") if "terms" in row]
    *low, first, second, third = sorted(row["toeplitz_share"][0] for row in trained)
    yield f"explains {first:.0%} to {third:.0%} of the variance of the scores ({low[0]:.0%} in the fourth)"
    assert first <= second
    largest = sorted(row["largest_score"] for row in trained)
    yield f"scores reach {largest[0]:.0f} to {largest[-1]:.0f}"
    terms = sorted(row["terms"]["1.0"] for row in trained)
    yield f"above 1 takes {terms[0]:.1f} to {terms[-1]:.1f} of 128 columns"

    rows = report.read(KEPT / "recovered.jsonl")
    lines = report.lines(rows)
    ((_, exact, _),), ((_, uniform, _),) = lines[replaced.EXACT], lines[UNIFORM]
    yield f"softmax attention {exact:.3f}, uniform averages {uniform:.3f}"
    at = {(line, k): bits for line, points in lines.items() for k, bits, _ in points}
    recover, window = report.RECOVER, replaced.WINDOW_LINE
    yield f"with 64 segments {at[recover, 64] - exact:.2f} bits more than softmax attention"
    yield f"equally spaced ones {at['equal starts', 64] - exact:.2f}"
    yield f"the best per head {at[recovered.PER_HEAD, 64] - exact:.2f}"
    yield f"A window of 4 keys loses {at[window, 4] - exact:.2f}"
    assert all(at[recovered.PER_HEAD, k] > at[window, k] for k in (4, 8, 16, 32, 64))
    assert all(at["equal starts", k] > at[recover, k] > at[window, 4] for k in (4, 8, 16, 32, 64))

    def tried(line):
        (row,) = (r for r in rows if r["line"] == line and (r.get("width"), r.get("delta")) == (8, 16.0))
        return row

    binary, scan = (tried(line) for line in recovered.SEARCHES.values())
    mean, least, most = binary["bases"]
    yield f"it finds {mean:.0f} segments on average ({least} to {most})"
    yield f"a scan finds {scan['bases'][0]:.0f}"
    yield f"a text and head is off by {binary['score_error']:.1f}"
    assert not any(row["within"] for row in rows if row["line"] == recover and row["delta"])
    (everything,) = (r for r in rows if r["line"] == recover and (r["width"], r["delta"]) == (1, 0))
    assert everything["points"][-1][1] == pytest.approx(exact, rel=1e-5)


def test_the_page_has_the_numbers_of_the_records():
    """Tables, sentences, and no other decimal in the section on the trained model."""
    page = (ROOT / "papers" / "conv_basis" / "README.md").read_text(encoding="utf-8")
    rows = report.read(KEPT / "recovered.jsonl")
    section = page.partition("**Trained heads")[2].partition("## When to use it")[0]
    for index in (report.BITS, report.ERROR):
        table, _, _ = report.replaced(rows, index).partition("\n\n")
        assert table in section
        section = section.replace(table, "")
    section = " ".join(section.split())
    for phrase in recover_phrases():
        assert phrase in section, phrase
        section = section.replace(phrase, "")
    section = section.replace("Theorem 4.4", "").replace("corollary 4.5", "")
    assert not re.findall(r"\d\.\d", section)
