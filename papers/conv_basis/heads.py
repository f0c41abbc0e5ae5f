"""Measure how few segments the scores of the trained model's heads need, on held-out text."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data import ByteTokenizer, PackedTokens, load_documents, split_documents
from based_jax.experiments.results import Row
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.models import LanguageModel
from based_jax.typing import Array, Float, Int, Params
from based_jax.validate import expect
from papers.conv_basis.approximations import Head, curves, minimal_terms, toeplitz_share
from papers.conv_basis.settings import Setting
from papers.conv_basis.training import FRACTION

FIGURE_TOKENS = 47
"""Number of tokens in the paper's figure 1b"""
TOLERANCES = (0.01, 0.1, 0.5, 1.0, 2.0)
"""Errors of the scores"""


class Heads(NamedTuple):
    """Queries (with positions and the scale of the scores), keys and values of all heads."""

    q: Float[np.ndarray, "layers B N H K"]
    k: Float[np.ndarray, "layers B N H K"]
    v: Float[np.ndarray, "layers B N H V"]


def held_out(setting: Setting) -> PackedTokens:
    """Return the text that the trainer held out."""
    loaded, most = load_documents("stdlib").documents, setting.held_out_bytes
    _, documents = split_documents(loaded, fraction=FRACTION, max_bytes=most)
    return PackedTokens.from_documents(documents, ByteTokenizer())


def windows(packed: PackedTokens, count: int, length: int) -> dict[str, Int[np.ndarray, "B N"]]:
    """Choose windows within one document each, spread evenly over the text; return inputs and targets."""
    every = [packed.window(i, length) for i in range(packed.num_windows(length, drop_last=True))]
    whole = [w for w in every if (w["segment_ids"] == w["segment_ids"][0]).all()]
    expect(len(whole) >= count, "texts", count, f"at most {len(whole)}, the held-out windows in one document")
    chosen = [whole[i * len(whole) // count] for i in range(count)]
    return {name: np.stack([w[name] for w in chosen]) for name in ("inputs", "targets")}


def look(model: LanguageModel, params: Params, tokens: Int[np.ndarray, "B N"]) -> Heads:
    """Run the model and capture the inputs of its attention."""

    rotated = SoftmaxHeads.rotated.__name__

    def is_kept(module: Any, method: str) -> bool:
        return method == rotated or (module.name == "v" and method == "__call__")

    @jax.jit
    def run(params: Params, tokens: Array) -> Any:
        return model.apply(params, tokens, capture_intermediates=is_kept, mutable=["intermediates"])

    _, found = run(params, jnp.asarray(tokens))
    kept = found["intermediates"]
    layers = [kept[f"layers_{i}"]["mixer"] for i in range(model.config.num_layers)]
    q, k = (np.stack([layer[rotated][0][i] for layer in layers]) for i in range(2))
    v = np.stack([layer["v"]["__call__"][0] for layer in layers])
    return Heads(*(np.asarray(x, np.float64) for x in (q * q.shape[-1] ** -0.5, k, v)))


def rows(setting: Setting, model: LanguageModel, params: Params, packed: PackedTokens) -> list[Row]:
    """Return records of each head, means over the texts: one of its scores, and one per line of errors."""
    tokens = windows(packed, setting.texts, setting.window)["inputs"]
    found = []
    for title, inputs in by_head(look(model, params, tokens)).items():
        head = {"input": title, "length": setting.window, "texts": len(inputs)}
        found.append({**head, **_scores(inputs)})
        lines = curves(inputs, setting.window_terms)
        found += [{**head, "line": line, "points": points} for line, points in lines.items()]
    return found


def by_head(heads: Heads) -> dict[str, list[Head]]:
    """Return each text's queries, keys and values, by the head's title."""
    layers, count, _, number, _ = heads.q.shape
    found = {}
    for layer, head in np.ndindex(layers, number):
        texts = [Head(*(x[layer, b, :, head] for x in heads)) for b in range(count)]
        found[f"layer {layer + 1}, head {head + 1}"] = texts
    return found


def first_scores(heads: Heads) -> dict[str, Float[np.ndarray, "N N"]]:
    """Return q k^T of each head for the first `FIGURE_TOKENS` tokens of the first text."""
    first = {title: texts[0] for title, texts in by_head(heads).items()}
    return {title: q[:FIGURE_TOKENS] @ k[:FIGURE_TOKENS].T for title, (q, k, _) in first.items()}


def _scores(inputs: Sequence[Head]) -> dict[str, Any]:
    scores = [np.tril(q @ k.T) for q, k, _ in inputs]
    shares = [toeplitz_share(x) for x in scores]
    short = scores[0][:FIGURE_TOKENS, :FIGURE_TOKENS]
    return {
        "largest_score": max(float(np.abs(x).max()) for x in scores),
        "toeplitz_share": [fmean(shares), min(shares), max(shares)],
        "terms": {str(e): fmean(minimal_terms(x, e) for x in scores) for e in TOLERANCES},
        f"terms_of_{FIGURE_TOKENS}_tokens": {str(e): minimal_terms(short, e) for e in TOLERANCES},
    }
