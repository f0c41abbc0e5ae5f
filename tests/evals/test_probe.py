"""The probe of recall in a model's own vocabulary."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from based_jax import command
from based_jax.convert import save_pretrained
from based_jax.data.tasks import IGNORE, RecallProbe
from based_jax.data.tokenizers import ByteTokenizer
from based_jax.evals import probe
from based_jax.evals.label_scores import LabelScorer
from based_jax.models import LanguageModel, MixerSpec, ModelConfig
from tests.generate.tiny import random_params

ROOT = Path(__file__).resolve().parents[2]
TASK = RecallProbe(40, num_examples=6, length=32, num_pairs=4, filler=9)


def induction(tokens):
    """Return logits of a model that repeats what followed the token before, or else says filler."""
    row, position = jnp.arange(tokens.shape[1])[:, None], jnp.arange(tokens.shape[1])
    same = (tokens[:, :, None] == tokens[:, None, :]) & (position < row) & (tokens != TASK.filler)[:, :, None]
    after = jnp.roll(tokens, -1, axis=1)
    choice = jnp.where(same.any(-1), jnp.take_along_axis(after, same.argmax(-1), axis=1), TASK.filler)
    return 3.0 * (jnp.arange(TASK.vocab_size) == choice[..., None])


def test_values_and_filler_are_measured_apart():
    scorer = LabelScorer(induction, length=32, vocab_size=40, batch_size=6)
    found = probe.probe(scorer, TASK, seed=0)
    sure = (np.e**3 + 39) / np.e**3
    assert found["accuracy"] == 1
    assert found["ar_perplexity"] == pytest.approx(sure, rel=1e-5)
    assert found["filler_perplexity"] == pytest.approx(sure, rel=1e-5)
    assert found["ar_tokens"] == 6 * 4
    segment = TASK.build(0)
    inputs, labels = np.asarray(segment.inputs), np.asarray(segment.labels)
    followed = sum(int((row[8:] == 9).sum()) for row in inputs)
    after_keys = sum(
        int(inputs[row, position + 1] == 9)
        for row, position in zip(*np.nonzero(labels != IGNORE), strict=True)
        if position + 1 < 32
    )
    assert found["filler_tokens"] == followed - after_keys

    def filler(tokens):
        return 3.0 * jnp.broadcast_to(jnp.arange(40) == 9, (*tokens.shape, 40))

    found = probe.probe(LabelScorer(filler, length=32, vocab_size=40, batch_size=6), TASK, seed=0)
    assert found["accuracy"] == 0
    assert found["ar_perplexity"] == pytest.approx(np.e**3 * sure, rel=1e-5)
    assert found["filler_perplexity"] == pytest.approx(sure, rel=1e-5)


def test_labels_of_filler():
    inputs = np.array([[1, 5, 2, 6, 9, 9, 2, 9, 1, 9]])
    labels = np.full_like(inputs, IGNORE)
    labels[0, [6, 8]] = [6, 5]
    expected = [[IGNORE, IGNORE, IGNORE, 9, 9, IGNORE, 6, IGNORE, 5, IGNORE]]
    np.testing.assert_array_equal(probe.with_filler(inputs, labels, 9), expected)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    config = ModelConfig(257, d_model=16, schedule="C", mixers={"C": MixerSpec("gated_conv")}, mlp_hidden=16)
    model, path = LanguageModel(config), tmp_path_factory.mktemp("model")
    save_pretrained(path, model, random_params(model))
    return path


def test_the_command(directory, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    result, figure = tmp_path / "probe.json", tmp_path / "probe.png"
    call = ["--checkpoint", str(directory), "--pairs", "4", "8", "--length", "32", "--samples", "3"]
    probe.main([*call, "--json", str(result)])
    content = json.loads(result.read_text())
    assert content["filler"] == ByteTokenizer().encode("\n")[0]
    assert [row["num_pairs"] for row in content["pairs"]] == [4, 8]
    assert [row["ar_tokens"] for row in content["pairs"]] == [12, 24]
    # Every second token after eight pairs of 32 tokens is a key, so that no filler is left to ask for.
    assert [row["filler_tokens"] > 0 for row in content["pairs"]] == [True, False]
    assert content["pairs"][1]["filler_perplexity"] is None
    out = capsys.readouterr().out
    for row in content["pairs"]:
        assert f"{row['ar_perplexity']:.4g}" in out
    probe.draw(figure, [content, content])
    assert figure.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--length", "62"), "length = 62: expected at least 4 * num_pairs = 64"),
        (("--length", "1024"), "vocab_size = 257: expected more than length = 1024"),
        (("--filler", "257", "--length", "128"), "filler = 257"),
        (("--samples", "0"), "samples = 0: expected at least 1"),
        (("--figure", "probe.txt"), "figure = 'probe.txt'"),
    ],
)
def test_errors_are_one_line(directory, capsys, flags, message):
    with pytest.raises(SystemExit) as ended:
        command.run(probe.PROG, lambda: probe.main(["--checkpoint", str(directory), "--pairs", "16", *flags]))
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
