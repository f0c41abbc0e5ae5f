"""Model cards: what a README.md says, that its front matter is YAML whatever is in it, and whose it is."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import based_jax as bj
from based_jax.convert.model_card import CARD, Measurement, ModelCard, card_text
from based_jax.convert.pretrained import read_card, read_config, save_pretrained
from based_jax.models import MixerSpec
from tests.convert.random_models import drawn, small

MODEL = bj.LanguageModel(small(schedule="MC", mixers={"M": MixerSpec("rwkv4"), "C": MixerSpec("gated_conv")}))
TEXT = st.text(max_size=40)
CARDS = st.builds(
    ModelCard,
    name=st.none() | TEXT,
    training=st.dictionaries(
        TEXT, TEXT | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    ),
    measurements=st.lists(
        st.builds(Measurement, TEXT, TEXT, st.floats(allow_nan=False, allow_infinity=False), TEXT), max_size=3
    ).map(tuple),
    license=st.none() | st.sampled_from(["mit", "cc-by-4.0"]),
    base_model=st.none() | st.just("owner/base.model"),
    datasets=st.sampled_from([(), ("owner/data", "c4")]),
)


def front_matter(text: str) -> dict:
    start, head, _ = text.split("---\n", 2)
    assert not start
    return yaml.safe_load(head)


@given(CARDS, TEXT)
def test_any_card_is_yaml_and_one_table_row_per_fact(card, name):
    text = card_text(card, MODEL.config, 1234, name)
    found = front_matter(text)
    assert found["tags"] == ["jax", "flax", "rwkv4", "gated_conv"]
    assert found.get("license") == card.license
    assert found.get("base_model") == card.base_model
    rows = [line for line in text.split("\n") if line.startswith("|")]
    tables = 1 + bool(card.training) + bool(card.measurements)
    assert len(rows) == 2 * tables + 8 + len({**card.training}) + len(card.measurements)
    text.encode()


@given(CARDS)
def test_config_json_keeps_a_card(card):
    assert ModelCard.from_dict(json.loads(json.dumps(card.to_dict()))) == card


def test_bad_cards():
    for fields, message in [
        ({"license": "MIT License"}, "license = 'MIT License': expected the hub's name"),
        ({"license": 3}, "license = 3"),
        ({"base_model": "a: b"}, "base_model = .*: expected hub ids"),
        ({"datasets": ("x\ny",)}, "datasets = "),
        ({"training": {"a": [1]}}, "training = .*: expected a mapping"),
        ({"training": 3}, "training = 3"),
        ({"training": {"a": float("nan")}}, "training = "),
        ({"measurements": (Measurement("a", "b", float("inf")),)}, "value = inf: expected a finite number"),
        ({"measurements": ("a",)}, "measurements = "),
        ({"name": 3}, "name = 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            ModelCard(**fields)
    for entries in (3, [], {"licence": "mit"}, *({"measurements": m} for m in (3, [{"data": "a"}], ["a"]))):
        with pytest.raises(ValueError, match="card"):
            ModelCard.from_dict(entries)


class TestInADirectory:
    def test_it_is_written_with_the_model_and_kept_in_its_config(self, tmp_path):
        card = ModelCard(training={"steps": 5}, measurements=(Measurement("a", "loss", 1.5, "nats"),))
        save_pretrained(tmp_path / "first", MODEL, drawn(MODEL), card=card)
        text = (tmp_path / "first" / CARD).read_text()
        assert "# first\n" in text
        assert "| a | loss | 1.5 | nats |" in text
        assert read_card(read_config(tmp_path / "first")) == card
        assert bj.load_pretrained(tmp_path / "first")[0] == MODEL

    def test_it_is_written_again_until_it_is_edited(self, tmp_path):
        save_pretrained(tmp_path, MODEL, drawn(MODEL), card=ModelCard(name="one"))
        save_pretrained(tmp_path, MODEL, drawn(MODEL), card=ModelCard(name="two"))
        assert "# two\n" in (tmp_path / CARD).read_text()
        (tmp_path / CARD).write_text("# mine\n")
        save_pretrained(tmp_path, MODEL, drawn(MODEL))
        assert (tmp_path / CARD).read_text() == "# mine\n"
