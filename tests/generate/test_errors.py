"""Every wrong argument ends with one line that names it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.generate import Snapshot, generate, stream

GOOD = np.array([[1, 2, 3], [4, 5, 6]])
KEY = jax.random.key(0)


PREFIX = Snapshot(np.array([1]), (jnp.zeros((2, 3)),), jnp.zeros((2, 16)))
CASES = {
    "flat": ([1, 2, 3], {}, "prompt = 1: expected rows of tokens"),
    "rank": (GOOD[0], {}, r"prompt has shape \(3,\)"),
    "float": (GOOD * 1.0, {}, "prompt has dtype float64"),
    "text": ("abc", {}, "prompt = 'abc'"),
    "no rows": ([], {}, r"prompt = \[\]: expected at least one row"),
    "empty": (np.zeros((2, 0), int), {}, r"prompt has shape \(2, 0\)"),
    "empty row": ([[1], []], {}, "prompt = 'row 1': expected at least one token"),
    "too large": ([[1, 50]], {}, r"prompt = 50: expected tokens in \[0, 50\)"),
    "negative": (jnp.array([[1, -2]]), {}, r"prompt = -2: expected tokens in \[0, 50\)"),
    "mask shape": (GOOD, {"attention_mask": np.ones((2, 2), bool)}, r"attention_mask has shape \(2, 2\)"),
    "mask dtype": (GOOD, {"attention_mask": np.ones((2, 3))}, "attention_mask has dtype float64"),
    "hole": (
        GOOD,
        {"attention_mask": jnp.array([[True, False, True]] * 2)},
        "attention_mask = 'row 0': expected",
    ),
    "masked row": (GOOD, {"attention_mask": GOOD < 4}, "prompt = 'row 1': expected at least one token"),
    "mask and rows": (
        [[1]],
        {"attention_mask": np.ones((1, 1), bool)},
        "attention_mask = 'ndarray': expected None",
    ),
    "no tokens": (GOOD, {"max_new_tokens": 0}, "max_new_tokens = 0: expected an integer, at least 1"),
    "too long": (GOOD, {"max_new_tokens": 2**31 - 1}, "max_new_tokens = 2147483647: expected at most"),
    "penalty": (GOOD, {"repetition_penalty": 0}, "repetition_penalty = 0: expected"),
    "rows": (GOOD, {"top_k": [1, 2, 3]}, r"top_k = \[1, 2, 3\]: expected one value, or one for each of 2"),
    "one row": (GOOD, {"temperature": [0.0, 1.0]}, "rng = None: expected jax.random.key"),
    "prefix": (GOOD, {"prefix": PREFIX}, r"prefix.hidden has shape \(2, 16\): expected \(1, 16\)"),
    "prefix rows": (
        GOOD,
        {"prefix": PREFIX._replace(hidden=jnp.zeros((1, 16)))},
        "prefix.state = 2: expected one row",
    ),
    "no rng": (GOOD, {"temperature": 1.0}, "rng = None: expected jax.random.key"),
    "seed": (GOOD, {"temperature": 1.0, "rng": 3}, "rng = 3: expected jax.random.key"),
    "array": (
        GOOD,
        {"temperature": 1.0, "rng": jnp.zeros(2)},
        "rng has dtype float32: expected jax.random.key",
    ),
    "keys": (
        GOOD,
        {"temperature": 1.0, "rng": jax.random.split(KEY, 3)},
        r"rng has shape \(3,\): expected \(2,\)",
    ),
    "stop": (GOOD, {"stop_tokens": [3, 50]}, r"stop_tokens = 50: expected tokens in \[0, 50\)"),
    "other prefix": (GOOD, {"prefix": ()}, "prefix = tuple: expected None or a `snapshot`"),
    "jax stop": (GOOD, {"stop_tokens": jnp.array([50])}, r"stop_tokens = 50: expected tokens in \[0, 50\)"),
    "number": (GOOD, {"stop_tokens": np.array(5)}, r"stop_tokens = array\(5\): expected a row of integers"),
    "stops": (GOOD, {"stop_tokens": 5}, "stop_tokens = 5: expected a row of integers"),
    "pad": (GOOD, {"pad_token": 0.5}, "pad_token = 0.5: expected an integer"),
    "prefill": (GOOD, {"prefill_chunk": 0}, "prefill_chunk = 0: expected an integer, at least 1"),
}


def test_error_names_the_argument(tiny):
    for call in [generate, stream]:
        for case in CASES:
            prompt, options, message = CASES[case]
            model = tiny("C")
            with pytest.raises((TypeError, ValueError), match=f"^{message}") as caught:
                call(model.model, model.params, prompt, **{"max_new_tokens": 4, **options})
            assert "\n" not in str(caught.value)


def test_a_wrapped_model_is_refused_with_what_to_pass():
    with pytest.raises(
        TypeError, match=r"^model = str: expected a LanguageModel .*`.module` and `.variables`"
    ):
        generate("model", {}, GOOD)


def test_stream_checks_its_chunk(tiny):
    model = tiny("C")
    with pytest.raises(ValueError, match=r"^chunk = 0: expected an integer, at least 1"):
        stream(model.model, model.params, GOOD, chunk=0)
