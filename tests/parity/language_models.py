"""Whole checkpoints: from either weight file to logits, gradients and greedy text."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.convert import from_torch, read_state_dict, to_torch
from based_jax.models import LanguageModel
from tests.arrays import array
from tests.parity.cases import Fixture


def check_checkpoint(fixture: Fixture, model: LanguageModel, params: Any, weights: Path) -> None:
    """Compare everything that is stored beside a weight file."""
    same, again = from_torch(fixture.meta, read_state_dict(weights))
    assert same == model
    assert jax.tree.all(jax.tree.map(np.array_equal, again, params))
    check_logits(fixture, model, params)
    check_generation(fixture, model, params)


@functools.partial(jax.jit, static_argnums=0)  # once for both weight files of a model
def _logits_and_gradients(model: LanguageModel, params: Any, tokens: Any, cotangent: Any) -> Any:
    def objective(params):
        hidden, _ = model.apply(params, tokens, method="hidden")
        logits = model.apply(params, hidden, method="unembed")
        return jnp.sum(logits * cotangent), (logits, hidden)

    (_, (logits, hidden)), gradients = jax.value_and_grad(objective, has_aux=True)(params)
    return logits, hidden, gradients


@functools.partial(jax.jit, static_argnums=0)
def _apply(model: LanguageModel, params: Any, tokens: Any, state: Any) -> Any:
    return model.apply(params, tokens, state)


def check_logits(fixture: Fixture, model: LanguageModel, params: Any) -> None:
    """Logits, and gradients with respect to every parameter."""
    tokens = array(fixture.arrays["in:input_ids"], np.int32)
    logits, hidden, gradients = _logits_and_gradients(model, params, tokens, fixture.arrays["in:cotangent"])
    logits = np.asarray(logits)
    fixture.compare("y", logits)
    for name, theirs in fixture.arrays.items():
        if name.startswith("y64"):
            stride = int(name.removeprefix("y64").removeprefix("_every") or 1)
            fixture.compare("y", logits[:, ::stride], theirs)
    fixture.compare_gradients(to_torch(fixture.meta, jax.device_get(gradients)))
    if "out:hidden" in fixture.arrays:
        kept = fixture.arrays["out:hidden"].shape[1]
        fixture.compare("hidden", hidden[:, :kept])


def check_generation(fixture: Fixture, model: LanguageModel, params: Any) -> None:
    """Greedy decoding with a state gives the stored tokens, or at least the stored margin of the choices."""
    plan = fixture.meta["generation"]
    inputs = fixture.inputs
    prompt = inputs.get("prompt", inputs["input_ids"][:, : plan["prompt_len"]]).astype(np.int32)
    tokens, scores = greedy(model, params, prompt, plan["new_tokens"], plan["vocab_slice"])
    scale = np.abs(scores).max()

    two_best = np.sort(scores, axis=-1)[..., -2:]
    margin = (two_best[..., 1] - two_best[..., 0]).min()
    assert abs(margin - plan["min_top1_top2_margin"]) <= 2 * fixture.tolerance("y") * scale

    stored = fixture.group("out")
    if "generated" in stored:
        fixture.errors["generated"] = 0.0
        with_prompt = stored["generated"].shape[-1] > plan["new_tokens"]
        ours = np.concatenate([prompt, tokens], axis=1) if with_prompt else tokens
        assert np.array_equal(stored["generated"], ours)
    if "generated_scores" in stored:
        theirs = stored["generated_scores"]
        ours = scores[:, :: plan["scores_stride"]]
        if theirs.shape[:2] != ours.shape[:2]:
            theirs = theirs.swapaxes(0, 1)
        fixture.compare("generated_scores", ours, theirs[..., : ours.shape[-1]])


def greedy(
    model: LanguageModel, params: Any, prompt: np.ndarray, new_tokens: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The most likely continuation: tokens (batch, new), and the logits that each was chosen from."""
    state = model.init_state(len(prompt), prompt.shape[1] + new_tokens)
    tokens, scores = [], []
    given = prompt
    for _ in range(new_tokens):
        logits, state = _apply(model, params, given, state)
        scores.append(np.asarray(logits)[:, -1, :vocab_size])
        given = scores[-1].argmax(-1).astype(np.int32)[:, None]
        tokens.append(given)
    return np.concatenate(tokens, axis=1), np.stack(scores, axis=1)
