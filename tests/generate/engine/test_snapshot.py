"""A snapshot is the state after its tokens, on disk as in memory; no other file is taken for one."""

import functools
import json
import struct
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from safetensors.numpy import load_file, save_file

from based_jax.generate.capacity import with_capacity
from based_jax.generate.engine.pool import read
from based_jax.generate.engine.snapshot import load_snapshot, save_snapshot, snapshot
from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.models.language_model import LanguageModel
from based_jax.testing import laws
from tests.mixers.test_contract import CASES, WIDTH, drawn, runner

TOKENS = list(range(3, 24))
REST = [4, 4, 9, 0, 2]


@pytest.fixture(scope="module")
def made(hybrid):
    return snapshot(hybrid.model, hybrid.params, TOKENS, max_length=48)


@pytest.fixture
def saved(hybrid, made, tmp_path):
    path = tmp_path / "prefix.safetensors"
    save_snapshot(path, hybrid.model, hybrid.params, *made)
    return path


def assert_same(found, expected):
    chex.assert_trees_all_equal_dtypes(found, expected)  # bfloat16 too, unlike `strict`
    chex.assert_trees_all_equal(found, expected)


def assert_close(found, expected):
    """float32 sums in another order: of a few dozen tokens, measured below 1e-5."""
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_text_continues_after_a_snapshot(hybrid, made, saved):
    whole = snapshot(hybrid.model, hybrid.params, TOKENS + REST, max_length=64)
    logits = hybrid.model.apply(hybrid.params, whole.hidden, method="unembed")
    assert [int(logits[0, :50].argmax())] == hybrid.greedy(TOKENS + REST, 1)
    padded = np.pad([REST], ((0, 0), (0, 32 - len(REST))))
    for prefix in (made, load_snapshot(saved, hybrid.model, hybrid.params)):
        state = with_capacity(hybrid.model, prefix.state, 64)
        state, hidden = read(hybrid.model, hybrid.params, state, padded, len(REST))
        assert_close((state, hidden), (whole.state, whole.hidden))


def test_chunks_of_any_size_are_one_text(hybrid, made, monkeypatch):
    monkeypatch.setattr(sys.modules["based_jax.generate.prompt"], "CHUNKS", (4, 16))
    chunks = snapshot(hybrid.model, hybrid.params, TOKENS, max_length=48)
    assert_close(chunks, made)


def test_a_file_gives_back_what_was_saved(hybrid, made, saved):
    assert_same(load_snapshot(saved, hybrid.model, hybrid.params, max_length=48), made)
    again = saved.with_name("again.safetensors")
    save_snapshot(again, hybrid.model, hybrid.params, *load_snapshot(saved, hybrid.model, hybrid.params))
    assert again.read_bytes() == saved.read_bytes()


def test_only_the_filled_slots_of_a_cache_are_kept(hybrid, saved):
    sizes = {name: array.shape for name, array in load_file(saved).items()}
    assert sizes["state/3/k"] == (1, len(TOKENS), 2, 8)
    assert sizes["state/2/k"] == (1, 4, 2, 8)  # a window's ring is whole
    assert (sizes["tokens"], sizes["hidden"]) == ((len(TOKENS),), (1, 16))


def random_leaf(generator, leaf):
    """Any numbers, but positions within the text and no broken streams."""
    if leaf.dtype == bool:
        return np.zeros(leaf.shape, bool)
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return generator.integers(0, len(TOKENS), leaf.shape).astype(leaf.dtype)
    return (9 * generator.normal(size=leaf.shape)).astype(leaf.dtype)


def test_states_of_every_mixer_survive(tmp_path):
    """bfloat16, complex numbers and integers among them; the values are random, nothing is compiled."""
    for case, options in CASES.items():
        layer = MixerSpec(case.partition("-")[0], options)
        model = LanguageModel(ModelConfig(50, WIDTH, "X", {"X": layer}, 8, dtype="bfloat16"))
        params = {"params": {"embedding": jnp.ones((56, WIDTH))}}
        generator = np.random.default_rng(0)
        shapes = jax.eval_shape(lambda: model.init_state(1, len(TOKENS)))  # noqa: B023
        state = jax.tree.map(functools.partial(random_leaf, generator), shapes)
        hidden = np.ones((1, WIDTH), jnp.bfloat16)
        save_snapshot(tmp_path / case, model, params, TOKENS, state, hidden)
        found = load_snapshot(tmp_path / case, model, params)
        assert_same(found.state, state)
        assert_same(found.hidden, hidden)
        assert found.tokens.tolist() == TOKENS


def rewrite(path, change):
    """Change a snapshot's tensors and metadata."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    notes, tensors = json.loads(content[8 : 8 + size])["__metadata__"], load_file(path)
    change(tensors, notes)
    save_file(tensors, path, notes)


def without_notes(path):
    save_file(load_file(path), path)


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "endless header": lambda path: path.write_bytes(b"\xff" * 7 + b"\x7f" + path.read_bytes()[8:]),
    "no JSON": lambda path: path.write_bytes(path.read_bytes().replace(b"{", b"[", 1)),
    "a text": lambda path: path.write_text("no snapshot at all\n" * 9),
    "no metadata": without_notes,
    "format": lambda path: rewrite(path, lambda tensors, notes: notes.update(format="pt")),
    "version": lambda path: rewrite(path, lambda tensors, notes: notes.update(version="1")),
    "no checksum": lambda path: rewrite(path, lambda tensors, notes: notes.pop("sha256")),
    "flipped bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "another token": lambda path: rewrite(path, lambda tensors, notes: change(tensors, "tokens", 7)),
    "missing": lambda path: rewrite(path, lambda tensors, notes: tensors.pop("state/2/k")),
    "no tokens": lambda path: rewrite(path, lambda tensors, notes: tensors.pop("tokens")),
    "extra": lambda path: rewrite(path, lambda tensors, notes: tensors.update(more=np.zeros(2))),
    "misshapen": lambda path: rewrite(
        path, lambda tensors, notes: tensors.update(hidden=np.zeros((1, 17), np.float32))
    ),
    "fewer tokens": lambda path: rewrite(
        path, lambda tensors, notes: tensors.update(tokens=tensors["tokens"][:-1])
    ),
    "dtype": lambda path: rewrite(
        path, lambda tensors, notes: tensors.update(hidden=tensors["hidden"].astype(np.float16))
    ),
    "a dtype without a name": lambda path: path.write_bytes(path.read_bytes().replace(b'"I32"', b'"Q99"')),
    "vocabulary": lambda path: rewrite(
        path, lambda tensors, notes: tensors.update(tokens=tensors["tokens"] + 30)
    ),
}


def change(tensors, name, value):
    """Set the last number of a tensor."""
    tensors[name] = tensors[name].copy()
    tensors[name].reshape(-1)[-1] = value


FORGED = {
    "state/3/stream/length": (2**31 - 1, "at most the 21 tokens"),
    "state/1/stream/start": (-1, "at most the 21 tokens"),
    "state/3/k": (np.nan, "numbers"),
    "hidden": (np.nan, "numbers"),
    "tokens": (50, r"tokens in \[0, 50\)"),
}


def test_values_that_no_state_has_are_refused_with_a_right_checksum_too(hybrid, made, saved):
    def forge(name, value, tensors, notes):
        change(tensors, name, value)
        notes.update(sha256=sys.modules["based_jax.generate.engine.snapshot"]._digest(tensors))

    content = saved.read_bytes()
    for name, (value, expected) in FORGED.items():
        saved.write_bytes(content)
        rewrite(saved, functools.partial(forge, name, value))
        with pytest.raises(ValueError, match=rf"\({name} = \[\S+\]: expected {expected}\)$"):
            load_snapshot(saved, hybrid.model, hybrid.params)


def test_a_poisoned_state_is_not_saved(hybrid, made, saved):
    before = saved.read_bytes()
    with pytest.raises(ValueError, match=r"^hidden = \[nan\]: expected numbers"):
        save_snapshot(saved, hybrid.model, hybrid.params, *made._replace(hidden=made.hidden * jnp.nan))
    assert saved.read_bytes() == before


def test_wrong_files(hybrid, saved):
    content = saved.read_bytes()
    for name, damage in DAMAGE.items():
        saved.write_bytes(content)
        damage(saved)
        with pytest.raises(ValueError, match=r"^snapshot = '.*': expected one of this model \(") as error:
            load_snapshot(saved, hybrid.model, hybrid.params)
        assert "\n" not in str(error.value), name
        assert len(str(error.value)) < 600, name


def test_other_models_and_weights(hybrid, saved):
    embedding = hybrid.params["params"]["embedding"]
    other = {"params": {**hybrid.params["params"], "embedding": nn.meta.unbox(embedding).at[3, 3].add(1e-3)}}
    with pytest.raises(ValueError, match=r"\(weights = '"):
        load_snapshot(saved, hybrid.model, other)
    with pytest.raises(ValueError, match=r"\(config = '"):
        load_snapshot(saved, LanguageModel(hybrid.model.config.replace(dtype="bfloat16")), hybrid.params)


def test_errors(hybrid, made, saved, tmp_path):
    model, params = hybrid.model, hybrid.params
    with pytest.raises(FileNotFoundError):
        load_snapshot(tmp_path / "none", model, params)
    with pytest.raises(ValueError, match=r"^snapshot = "):
        load_snapshot(tmp_path, model, params)
    with pytest.raises(ValueError, match=r"^max_length = 20: expected at least the 21 tokens"):
        load_snapshot(saved, model, params, max_length=20)
    with pytest.raises(ValueError, match=r"^max_length = 20: expected at least 21, the number of tokens"):
        snapshot(model, params, TOKENS, max_length=20)
    with pytest.raises(ValueError, match=r"^prompt = 50: expected tokens in \[0, 50\)"):
        snapshot(model, params, [50])
    limited = LanguageModel(model.config.replace(max_positions=20))
    with pytest.raises(ValueError, match=r"^tokens = 21: expected at most 20 = max_positions"):
        snapshot(limited, params, TOKENS)
    before = saved.read_bytes()
    twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), made.state)
    for state, hidden in (
        (twice, made.hidden),
        (made.state[:2], made.hidden),
        (made.state, made.hidden[:, 1:]),
    ):
        with pytest.raises(ValueError, match="expected"):
            save_snapshot(saved, model, params, TOKENS, state, hidden)
    assert saved.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]


def test_what_a_state_depends_on_is_noted(hybrid):
    model, notes = hybrid.model, sys.modules["based_jax.generate.engine.snapshot"]._notes
    config, ours = model.config, notes(model, hybrid.params)
    same = LanguageModel(config.replace(remat="block", init_std=0.1, max_length=9))
    assert notes(same, nn.meta.unbox(hybrid.params)) == ours
    others = [config.replace(schedule="CLSC"), config.replace(norm_eps=1e-6)]
    others.append(config.with_mixer("sliding_window", [2], num_heads=2, left=4))
    assert len({notes(LanguageModel(other), hybrid.params)["config"] for other in [config, *others]}) == 4


@pytest.mark.parametrize("case", ["attention", "base_conv-long"])
def test_a_state_moves_to_another_capacity(case):
    """A snapshot read with little capacity equals one read with much, there and back."""
    run = runner(case)
    x = drawn(1, 6)
    small, large = (run(x, run.mixer.init_state(2, size))[1] for size in (13, laws.MAX_LENGTH))
    assert_same(with_capacity(run.mixer, small, laws.MAX_LENGTH), large)
    assert_same(with_capacity(run.mixer, large, 13), small)
