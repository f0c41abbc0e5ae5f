"""Run the trained model with other attention in place of its own, and unchanged weights, on held-out texts.

An `Attend` computes a layer's outputs from its queries, keys and values. It may read the whole text, later
tokens included, as the paper's search for segments does.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from based_jax import ops
from based_jax.data import PackedTokens
from based_jax.evals.perplexity.scoring import target_scores
from based_jax.experiments.results import Row
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.models import LanguageModel
from based_jax.typing import Array, Float, Int, Params
from papers.conv_basis.approximations import UNIFORM, equal_starts, geometric_starts
from papers.conv_basis.heads import Heads, look, windows
from papers.conv_basis.settings import Setting

EXACT = "softmax attention"
WINDOW_LINE = "last k keys"
"""Softmax attention to these only; takes at most as many scores as k segments"""

Attend = Callable[..., Array]
"""Maps queries (scaled), keys and values, (B, N, H, K), and arguments of its own, to outputs (B, N, H, V)."""


class Replaced(NamedTuple):
    """The model with other attention."""

    bits: float
    """per byte of the texts"""
    output_error: float
    """relative error of a head's outputs for the queries, keys and values of the model itself, mean over
    the heads and texts"""

    def at(self, k: int) -> tuple[int, float, float]:
        """Return the point (k, bits, output error) of a record."""
        return k, self.bits, self.output_error


class Texts(NamedTuple):
    """Held-out texts of one document each, and what the model's own attention reads in them."""

    model: LanguageModel
    params: Params
    inputs: Int[np.ndarray, "B N"]
    targets: Int[np.ndarray, "B N"]
    heads: Heads

    @classmethod
    def of(cls, setting: Setting, model: LanguageModel, params: Params, packed: PackedTokens) -> "Texts":
        """Choose `setting.replaced_texts` windows, spread evenly over the held-out text."""
        chosen = windows(packed, setting.replaced_texts, setting.window)
        return cls(model, params, chosen["inputs"], chosen["targets"], look(model, params, chosen["inputs"]))

    @property
    def qkv(self) -> tuple[Float[Array, "rows N H K"], ...]:
        """Queries (scaled), keys and values in float32, a row per layer and text."""
        return tuple(jnp.asarray(x.reshape(-1, *x.shape[2:]), jnp.float32) for x in self.heads)

    def through(self, attend: Attend) -> Callable[..., list[Replaced]]:
        """Return a function of the values of `attend`'s fourth argument, and of its further arguments.

        It is compiled once for all values, which have a first axis in common.
        """

        def nats(params: Params, inputs: Array, targets: Array, *how: Any) -> Array:
            with nn.intercept_methods(_replacing(lambda *qkv: attend(*qkv, *how))):
                hidden: Any = self.model.apply(params, inputs, method="hidden")
            flat = hidden[0].reshape(-1, hidden[0].shape[-1])
            losses, _, _ = target_scores(self.model, params, flat, targets.reshape(-1))
            return losses.mean()

        @jax.jit
        def run(params: Params, inputs: Array, targets: Array, qkv: Any, values: Any, *how: Any) -> Any:
            exact = softmax(*qkv)

            def one(value: Any) -> tuple[Array, Array]:
                error = errors(attend(*qkv, value, *how), exact).mean()
                return nats(params, inputs, targets, value, *how), error

            return jax.vmap(one)(values)

        def replaced(values: Any, *how: Any) -> list[Replaced]:
            found = run(self.params, self.inputs, self.targets, self.qkv, values, *how)
            losses, distances = (np.asarray(x, np.float64) for x in found)
            bits = losses / math.log(2)
            return [Replaced(*pair) for pair in zip(bits.tolist(), distances.tolist(), strict=True)]

        return replaced


def softmax(q: Array, k: Array, v: Array, last: Array | int | None = None) -> Array:
    """Attend exactly, to the `last` keys only if that is a number."""
    lag = jnp.arange(q.shape[1])[:, None] - jnp.arange(q.shape[1])
    visible = (lag >= 0) if last is None else (lag >= 0) & (lag < last)
    scores = jnp.where(visible, jnp.einsum("bnhk,bmhk->bhnm", q, k), -jnp.inf)
    return jnp.einsum("bhnm,bmhv->bnhv", jax.nn.softmax(scores), v)


def through_segments(q: Array, k: Array, v: Array, starts: Int[Array, "#B #H A"]) -> Array:
    """Attend through segments that begin at `starts`; those at N are empty."""
    shape = (q.shape[0], q.shape[2], starts.shape[-1])
    starts = jnp.broadcast_to(starts, shape)
    return ops.conv_attention(q, k, v, starts=starts, scale=1.0, implementation="reference")


def errors(y: Float[Array, "B N H V"], exact: Float[Array, "B N H V"]) -> Float[Array, "B H"]:
    """Return the relative error of each text and head in the Frobenius norm."""
    return jnp.linalg.norm(y - exact, axis=(1, 3)) / jnp.linalg.norm(exact, axis=(1, 3))


def rows(setting: Setting, texts: Texts) -> list[Row]:
    """Return one record per kind of attention that reads no text to choose its scores.

    Its `points` are (k, bits per byte, output error).
    """
    length = setting.window
    last, terms = texts.through(softmax), list(setting.window_terms)
    exact, *windows = last(jnp.asarray([length, *terms], jnp.int32))
    (uniform,) = texts.through(lambda q, k, v, scale: softmax(scale * q, k, v))(jnp.zeros(1))
    found: dict[str, list[tuple[int, float, float]]] = {EXACT: [exact.at(0)], UNIFORM: [uniform.at(0)]}
    made = [(kind, starts_of(length, count)) for kind, starts_of in STARTS.items() for count in terms]
    each = texts.through(through_segments)(jnp.stack([_padded(starts, length) for _, starts in made]))
    for (kind, starts), one in zip(made, each, strict=True):
        found.setdefault(kind, []).append(one.at(len(starts)))
    found[WINDOW_LINE] = [one.at(keys) for keys, one in zip(terms, windows, strict=True)]
    about = {"input": "language model", "length": length, "texts": len(texts.inputs)}
    return [{**about, "line": line, "points": points} for line, points in found.items()]


STARTS: Mapping[str, Callable[[int, int], Int[np.ndarray, " k"]]] = {
    "equal starts": equal_starts,
    "geometric starts": geometric_starts,
}
"""Positions that depend on the length only"""


def _padded(starts: Int[np.ndarray, " k"], length: int) -> Int[Array, "1 1 N"]:
    """Append empty segments, so that all numbers of segments share a program."""
    return jnp.asarray(np.pad(starts, (0, length - len(starts)), constant_values=length), jnp.int32)[
        None, None
    ]


def _replacing(attend: Attend) -> Callable[..., Any]:
    """Return an interceptor of Flax's methods that computes attention layers with `attend`."""

    def intercept(call: Callable[..., Any], args: Any, kwargs: Any, about: Any) -> Any:
        module = about.module
        if not isinstance(module, SoftmaxHeads) or about.method_name != "mix":
            return call(*args, **kwargs)
        x, state, context = args
        q, k, v = module.equal_heads(x, state, context)
        return module.out(attend(q * q.shape[-1] ** -0.5, k, v)), state

    return intercept
