"""The recall card: a model of another library whose recall is known, our checkpoints, the page, the probe."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import based_jax as bj
from based_jax import plot
from based_jax.data import PackedTokens
from based_jax.data.tasks import RecallProbe
from based_jax.evals.card import __main__ as command
from based_jax.evals.card.page import finding
from based_jax.evals.card.recall_card import probe, recall_probe
from based_jax.evals.card.subject import without
from based_jax.evals.label_scores import LabelScorer
from based_jax.models import MixerSpec, ModelConfig
from tests.arrays import normals

VOCAB, LENGTH = 40, 32
SMALL = {"lengths": (16, LENGTH), "pairs": (2, 4), "examples": 8, "batch_size": 8}
CONFIG = ModelConfig(
    VOCAB,
    16,
    "CAA",
    {"C": MixerSpec("gated_conv"), "A": MixerSpec("attention", {"num_heads": 2})},
    mlp_hidden=16,
    max_length=LENGTH,
    scan_layers=True,
    remat="block",
)
MODEL = bj.LanguageModel(CONFIG)
TABLE = jnp.eye(VOCAB)
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (8, LENGTH), np.int32)
CELLS = {(16, 2), (16, 4), (32, 2), (32, 4)}
SECTIONS = ("mqar", "hits", "probe", "state", "parts")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory of random weights, and the weights."""
    directory = tmp_path_factory.mktemp("checkpoints") / "tiny"
    params = normals(MODEL.init, TOKENS)
    bj.save_pretrained(directory, MODEL, params)
    return directory, params


def induction(embed, tokens, strength: float):
    """Logits of an induction head: it finds the first earlier occurrence of each token and reads the next."""
    h = embed(tokens)
    before = jnp.pad(h[:, :-1], [(0, 0), (1, 0), (0, 0)])
    position = jnp.arange(h.shape[1])
    scores = 4 * LENGTH * jnp.einsum("bid,bjd->bij", h, before) - position
    scores = jnp.where(position[:, None] >= position, scores, -jnp.inf)
    return strength * jax.nn.softmax(scores) @ h


def of_equinox(strength: float):
    eqx = pytest.importorskip("equinox")

    class Head(eqx.Module):
        embed: eqx.nn.Embedding

        def __call__(self, tokens):
            return induction(jax.vmap(jax.vmap(self.embed)), tokens, strength)

    return Head(eqx.nn.Embedding(weight=jnp.eye(VOCAB)))


def of_nnx(strength: float):
    class Head(nnx.Module):
        def __init__(self):
            self.embed = nnx.Embed(VOCAB, VOCAB, rngs=nnx.Rngs(0), embedding_init=lambda *_: jnp.eye(VOCAB))

        def __call__(self, tokens):
            return induction(self.embed, tokens, strength)

    return Head()


@pytest.mark.slow
@pytest.mark.parametrize("make", [of_equinox, of_nnx])
def test_a_model_of_another_library(make, tmp_path, monkeypatch):
    """An induction head: it recalls everything, and nothing once it is switched off."""
    monkeypatch.setattr(plot, "missing", lambda: "no figure")
    known = {"parts": {"head": make(0.0)}, "state_bytes": lambda length: 4 * length}
    card = bj.evals.recall_card(make(20.0), vocab_size=VOCAB, name="head", **known, **SMALL)
    assert card["model"] == {"source": "callable"}
    for section in ("mqar", "probe"):
        cells = {(cell["length"], cell["pairs"]): cell["accuracy"] for cell in card[section]}
        longest = {key for key in CELLS if key[0] == LENGTH}
        assert cells.keys() == (CELLS if section == "mqar" else longest)
        assert set(cells.values()) == {1.0}
        assert all(cell["perplexity"] < 1.001 for cell in card[section])
    assert card["hits"]["hits"]["tokens"] >= 4 * 8
    assert card["hits"]["gap"] > 10
    assert [(row["length"], row["bytes"], row["accuracy"]) for row in card["state"]] == [
        (16, 64, 1),
        (32, 128, 1),
    ]
    (row,) = card["parts"]["without"]
    assert (row["part"], row["role"], row["layers"]) == ("head", "carries recall", None)
    assert row["accuracy"] == row["kept"] < 0.2
    assert finding(card) == "Accuracy 1.000 with 4 pairs in 32 tokens. Recall is carried by head."
    written = bj.evals.write_recall_card(tmp_path, card)
    assert json.loads(written.read_text()) == json.loads(json.dumps(card))


def test_what_a_callable_cannot_answer_has_its_reason():
    card = bj.evals.recall_card(of_nnx(20.0), vocab_size=VOCAB, **{**SMALL, "lengths": (64,)})
    for section in ("mqar", "probe", "state", "parts"):
        assert card[section]["not_measured"], section
    assert "4 * pairs <= length" in card["mqar"]["not_measured"]
    assert "vocab_size" in card["hits"]["not_measured"]
    sighted = bj.evals.recall_card(lambda tokens: TABLE[tokens[:, ::-1]], vocab_size=VOCAB, **SMALL)
    for section in SECTIONS:
        assert "expected a causal model" in sighted[section]["not_measured"]


def test_a_text_is_read_as_in_training():
    """With the token that its tokenizer puts before a document, which is not the separator between them."""
    read = []

    def model(tokens):
        read.append(np.array(tokens))
        return np.zeros((*tokens.shape, VOCAB), np.float32)

    tokens = np.array([0, *range(2, 17), 0, *range(2, 18)], np.uint8)
    text = PackedTokens(tokens, starts=np.array([0, 16]), num_bytes=31, start=1)
    few = {"lengths": np.array([16]), "pairs": (2,), "examples": 2, "batch_size": 2}
    card = bj.evals.recall_card(model, vocab_size=np.int64(VOCAB), text=text, **few)
    assert json.loads(json.dumps(card))["mqar"][0]["length"] == 16
    assert any(np.array_equal(batch, 2 * [[*range(1, 17)]]) for batch in read)


@pytest.mark.slow
def test_a_mixer_that_is_switched_off_adds_nothing(saved):
    """The same logits as with zeros for its output maps, also with scanned and rematerialised layers."""
    _, params = saved
    silent = jax.tree.map_with_path(
        lambda path, leaf: (
            leaf * ("layers_0" in str(path) or "mixer']['out" not in jax.tree_util.keystr(path))
        ),
        params,
    )

    @jax.jit
    def outputs(tokens):
        others = (without(MODEL, params, name)(tokens) for name in ("attention", None))
        return MODEL.apply(silent, tokens)[0], MODEL.apply(params, tokens)[0], *others

    wanted, whole, found, unchanged = outputs(TOKENS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(unchanged, whole, atol=1e-5)
    assert np.abs(whole - wanted).max() > 1e-2


@pytest.mark.slow
def test_the_command_writes_cards_of_checkpoints_and_their_page(saved, tmp_path):
    directory, _ = saved
    text = tmp_path / "text.txt"
    text.write_text("acgtta" * 40)
    out = tmp_path / "cards"
    words = ["--checkpoint", str(directory), "--out", str(out), "--text", str(text), "--tokenizer", "dna"]
    words += ["--lengths", "16", "32", "--pairs", "2", "4", "--examples", "8", "--batch-size", "8"]
    assert command.main(words) == 0
    first = json.loads((out / "tiny.json").read_text())
    bj.evals.write_recall_card(str(out), {**first, "name": "other"})
    assert first["hits"]["source"] == "text"
    # Of seven rows of 32 targets, all but the text's first bigrams in each row are repeats.
    assert first["hits"]["all"]["tokens"] == 7 * 32
    assert first["hits"]["hits"]["tokens"] == 7 * (32 - 6) - 1
    assert first["model"]["layers"] == ["gated_conv", "attention", "attention"]
    assert first["model"]["parameters"] == bj.param_count(CONFIG)
    state = jax.eval_shape(lambda: MODEL.init_state(1, 32))
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert first["state"][-1]["bytes"] == held > first["state"][0]["bytes"]
    assert [(row["part"], row["layers"]) for row in first["parts"]["without"]] == [
        ("gated_conv", [0]),
        ("attention", [1, 2]),
    ]
    page = (out / "index.html").read_text()
    assert page.count("<img ") == (3 if plot.missing() is None else 0)
    assert "http" not in page
    for name in ("tiny", "other", "All models"):
        assert f"<h2>{name}</h2>" in page
    with pytest.raises(ValueError, match=r"out = '.*tiny\.json': expected a directory that can be written"):
        command.main([*words[:2], "--out", str(out / "tiny.json")])
    (out / "no card.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no card\.json'?: expected only files with hits, mqar, name"):
        bj.evals.write_recall_card(out, first)


def test_bad_settings(saved):
    for changes, message in [
        ({"lengths": (15,)}, "lengths = 15: expected even numbers"),
        ({"pairs": ()}, "expected at least one of each"),
        ({"filler": VOCAB}, f"filler = {VOCAB}: expected an integer, from 0 to {VOCAB - 1}"),
        ({"vocab_size": None}, "vocab_size = None: expected an integer"),
    ]:
        with pytest.raises(ValueError, match=message):
            bj.evals.recall_card(lambda tokens: TABLE[tokens], **{"vocab_size": VOCAB, **SMALL, **changes})
    with pytest.raises(ValueError, match="vocab_size = 40: expected None with a checkpoint"):
        bj.evals.recall_card(saved[0], vocab_size=VOCAB)


FILLER = 9
TASK = RecallProbe(VOCAB, num_examples=6, length=32, num_pairs=4, filler=FILLER)
SURE = (np.e**3 + VOCAB - 1) / np.e**3
"""perplexity of a logit of 3 among zeros"""


def sure_of(choice):
    return 3.0 * (jnp.arange(VOCAB) == choice[..., None])


def repeating(tokens):
    """Return logits of a model that repeats what followed the token before, or else says filler."""
    row, position = jnp.arange(tokens.shape[1])[:, None], jnp.arange(tokens.shape[1])
    same = (tokens[:, :, None] == tokens[:, None, :]) & (position < row) & (tokens != FILLER)[:, :, None]
    after = jnp.roll(tokens, -1, axis=1)
    return sure_of(jnp.where(same.any(-1), jnp.take_along_axis(after, same.argmax(-1), axis=1), FILLER))


def only_filler(tokens):
    return sure_of(jnp.full_like(tokens, FILLER))


@pytest.mark.parametrize(("model", "accuracy", "factor"), [(repeating, 1, 1), (only_filler, 0, np.e**3)])
def test_values_and_filler_are_measured_apart(model, accuracy, factor):
    """The induction head is wrong about filler after a key, which must not be scored."""
    scorer = LabelScorer(model, length=32, vocab_size=VOCAB, batch_size=6)
    wanted = {"accuracy": accuracy, "perplexity": factor * SURE, "filler_perplexity": SURE}
    assert probe(scorer, TASK, seed=0) == pytest.approx(wanted, rel=1e-5)


def test_rows_without_filler():
    """Every second token after eight pairs of 32 tokens is a key: no filler is left to ask for."""
    scorer = LabelScorer(repeating, length=32, vocab_size=VOCAB, batch_size=6)
    four, eight = recall_probe(scorer, 32, (4, 8, 16), 6, 0, FILLER)
    assert four["filler_perplexity"] == pytest.approx(SURE, rel=1e-5)
    assert (eight["pairs"], eight["filler_perplexity"]) == (8, None)
