"""What an exported directory makes is what `generate` makes of the model."""

import os
import sys
from importlib import metadata

import jax
import numpy as np
import pytest

from based_jax import compat
from based_jax.broken_fusions import avoid_broken_fusions
from based_jax.export import runner
from based_jax.generate import generate
from tests.export.conftest import Case
from tests.generate.tiny import LENGTH
from tests.subprocesses import run_python
from tests.tolerances import FLOAT32, assert_close

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6], [43]]
"""shorter and longer than a chunk of 8, than the window and than the kernels"""
NEW = 12


def reference(case: Case, **options) -> list[list[int]]:
    model, params = case.tiny.model, case.tiny.params
    return np.asarray(generate(model, params, PROMPTS, NEW, prefill_chunk=8, **options)).tolist()


def expect_clear_choices(case: Case, prompts: list[list[int]], texts: list[list[int]]) -> None:
    """These are the model's greedy tokens, and no rounding of differently batched programs changes them."""
    for prompt, new in zip(prompts, texts, strict=True):
        logits = forward(case, [*prompt, *new])[len(prompt) - 1 :][: len(new), :50]
        assert logits.argmax(axis=-1).tolist() == new
        best = np.sort(logits, axis=-1)
        assert (best[:, -1] - best[:, -2] > 1e-3).all()


def forward(case: Case, text: list[int]) -> np.ndarray:
    """The model's logits (tokens, vocab) of a whole text, by one pass."""
    padded = np.zeros((1, LENGTH), np.int32)
    padded[0, : len(text)] = text
    return np.asarray(case.tiny.forward(case.tiny.params, padded))[0]


@pytest.fixture(scope="module")
def greedy(mixed: Case) -> list[list[int]]:
    texts = reference(mixed)
    expect_clear_choices(mixed, PROMPTS, texts)
    return texts


def test_greedy_tokens(mixed, greedy):
    assert mixed.exported.generate(PROMPTS, NEW) == greedy


PENALTIES = {"repetition_penalty": 1.5, "presence_penalty": 0.4, "frequency_penalty": 0.3}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"temperature": 0.9, "top_k": 9, "top_p": 0.8}, id="candidates"),
        pytest.param({"temperature": 0.9, **PENALTIES}, id="penalties", marks=pytest.mark.slow),
    ],
)
def test_sampled_tokens(mixed, greedy, settings):
    texts = mixed.exported.generate(PROMPTS, NEW, seed=7, **settings)
    assert texts == reference(mixed, rng=jax.random.key(7), **settings) != greedy


def test_stop_tokens_end_a_row(mixed, greedy):
    stops = [greedy[0][3], greedy[1][7]]
    ends = [next((i for i, token in enumerate(row) if token in stops), NEW) for row in greedy]
    texts = mixed.exported.generate(PROMPTS, NEW, stop_tokens=stops)
    assert texts == [row[:end] for row, end in zip(greedy, ends, strict=True)]
    assert min(ends) < NEW


def test_calls_are_the_model(mixed):
    """Prefill in two chunks, then a step of some rows: logits and states, those of the others untouched."""
    exported = mixed.exported
    tokens = np.arange(48, dtype=np.int32).reshape(3, 16) % 50
    mask = np.arange(16) < np.array([[16], [3], [11]])
    first, state = exported.prefill(exported.init(3), tokens[:, :8], mask[:, :8])
    second, state = exported.prefill(state, tokens[:, 8:], mask[:, 8:])
    right = forward(mixed, [*tokens[0].tolist(), 7])
    assert_close(first[0], right[7], FLOAT32, "first chunk")
    assert_close(second[0], right[15], FLOAT32, "second chunk")

    kept = {name: np.asarray(leaf) for name, leaf in state.items()}
    logits, after = exported.decode(state, np.array([7, 8, 9], np.int32), np.array([True, False, True]))
    assert_close(logits[0], right[16], FLOAT32, "step")
    assert {name: leaf.shape for name, leaf in after.items()} == {n: leaf.shape for n, leaf in kept.items()}
    for name, leaf in after.items():
        assert np.array_equal(leaf[1], kept[name][1]), name
        assert np.array_equal(state[name], kept[name]), name  # states are values
    assert any((np.asarray(after[name])[0] != kept[name][0]).any() for name in kept)
    lengths = [leaf.tolist() for name, leaf in after.items() if name.endswith("stream/length")]
    assert lengths == [[17, 3, 12]] * len(lengths) != []


def test_alone_without_the_library(mixed, greedy):
    """run.py in a process that can import nothing of ours: each prompt alone is as it was in the batch."""
    script = f"""
import runpy, sys
for name in ("based_jax", "pallas_kernels", "train", "flax", "optax", "tyro"):
    sys.modules[name] = None  # importing it is an error
sys.argv = ["run.py", "--tokens", "{",".join(map(str, PROMPTS[1]))}", "--max-new-tokens", "{NEW}"]
runpy.run_path({str(mixed.directory / "run.py")!r}, run_name="__main__")
"""
    assert run_python(script.replace('run_name="__main__")', 'run_name="run")["main"]()')) == (
        ",".join(map(str, greedy[1])) + "\n"
    )


@pytest.mark.slow
def test_fixed_batch(small):
    prompt = [5, 6, 7, 8, 9]
    assert small.exported.generate([prompt], 7) == [small.tiny.greedy(prompt, 7)]
    with pytest.raises(ValueError, match=r"^rows = 3: expected 2, as exported"):
        small.exported.generate([prompt] * 3, 7)
    with pytest.raises(ValueError, match=r"^rows = 1: expected 2, as exported"):
        small.exported.init(1)


def test_wrong_arguments(plain):
    for options, message in [
        ({"prompts": []}, r"^prompts = \[\]: expected at least one row"),
        ({"prompts": [[1], []]}, "^prompts = 'an empty row': expected at least one token"),
        ({"prompts": [[1, 50]]}, r"^tokens = \[50\]: expected integers in \[0, 50\)"),
        ({"prompts": [[1.5]]}, r"^tokens = \[1.5\]: expected integers"),
        ({"stop_tokens": [-1]}, r"^tokens = \[-1\]: expected integers"),
        ({"max_new_tokens": 0}, "^max_new_tokens = 0: expected an integer"),
        ({"max_new_tokens": 46}, "^max_new_tokens = 46: expected at most 48 tokens together with a prompt"),
        ({"temperature": float("nan")}, "^temperature = nan: expected a finite number"),
        ({"top_k": -1}, "^top_k = -1: expected"),
        ({"top_p": 0}, "^top_p = 0: expected"),
        ({"min_p": 2}, "^min_p = 2: expected"),
        ({"seed": -1}, "^seed = -1: expected"),
        ({"repetition_penalty": 1e-308}, "^repetition_penalty = 1e-308: expected a number from 1e-20"),
        ({"presence_penalty": float("inf")}, "^presence_penalty = inf: expected"),
    ]:
        with pytest.raises(ValueError, match=message):
            plain.exported.generate(**{"prompts": [[1, 2, 3]], "max_new_tokens": 1, **options})


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "mixed"])
def test_the_whole_length_can_be_used(case, request):
    """The last padded chunk reaches beyond the caches' end; real tokens fill them."""
    case = request.getfixturevalue(case)
    prompts = [PROMPTS[1] * 2, PROMPTS[0], PROMPTS[2]]
    count = LENGTH - len(prompts[0])
    expect_clear_choices(case, prompts, case.exported.generate(prompts, count))


def test_broken_fusions_are_avoided_as_in_the_library(monkeypatch):
    for version in ["0.10.1", "0.10.2", "0.12.3", "0.13.0"]:
        monkeypatch.setattr(metadata, "version", lambda _, version=version: version)
        monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", None)  # does not say whether JAX was used
        monkeypatch.setattr(compat, "is_jax_used", lambda: False)
        found = []
        for avoid in (avoid_broken_fusions, runner.avoid_broken_fusions):
            monkeypatch.setenv("XLA_FLAGS", "--other")
            avoid()
            found.append(os.environ["XLA_FLAGS"])
        assert found[0] == found[1]
        assert (found[0] != "--other") == (version in ("0.10.2", "0.12.3"))
