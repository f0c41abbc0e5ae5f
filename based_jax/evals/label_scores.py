"""Score labelled positions with any causal model: a callable ``(tokens) -> logits``.

    compiled = jax.jit(model.apply)
    scorer = LabelScorer(lambda tokens: compiled(params, tokens)[0], length=64, vocab_size=8192)
    scores = scorer(segment.inputs, segment.labels)
    scores.loss.mean(), scores.correct.mean()

The callable may come from any library (Flax, NNX, Equinox, Hugging Face): tokens are int32 (batch, length),
and logits are (batch, length, vocabulary) of a floating dtype.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32, Int32

from based_jax.data.tasks import IGNORE
from based_jax.typing import Array, Float, Int
from based_jax.validate import expect, expect_array, expect_integer

LogitsFn = Callable[[Int[Array, "B N"]], Any]
"""A causal model: int32 tokens (B, N) -> logits (B, N, V), where V may include padding of the vocabulary."""

_VALUES = 1 << 24
"""Logits per call by default: 64 MiB in float32."""
_MOST_ROWS = 64


class LabelScores(NamedTuple):
    """One entry per label, row by row and from left to right."""

    row: Int32[np.ndarray, " labels"]
    """index of the example"""
    position: Int32[np.ndarray, " labels"]
    """position of the label in its example"""
    loss: Float32[np.ndarray, " labels"]
    """-log of the label's probability, in nats"""
    correct: Bool[np.ndarray, " labels"]
    """whether the label is the most likely token"""


class LabelScorer:
    """Score labels with a causal model, always in calls of one shape, so that a compiled one compiles once.

    Attributes:
        length: tokens per row of a call; shorter examples are padded on the right.
        vocab_size: tokens are below it. The softmax is over all logits, as in training; the most likely token
            is never one of the padding after `vocab_size`.
        batch_size: rows per call.
    """

    def __init__(self, apply_fn: LogitsFn, length: int, vocab_size: int, *, batch_size: int | None = None):
        """Check the arguments.

        Args:
            apply_fn: see `LogitsFn`. It is called as it is: compile it, with the weights as an argument.
            batch_size: default: as many rows, at most 64, as have 64 MiB of logits.

        Raises:
            ValueError: an argument out of range.
        """
        expect(callable(apply_fn), "apply_fn", type(apply_fn).__name__, "a function (tokens) -> logits")
        for name, value in (("length", length), ("vocab_size", vocab_size), ("batch_size", batch_size)):
            if value is not None:
                expect_integer(name, value, 1)
        rows = max(min(_VALUES // (length * vocab_size), _MOST_ROWS), 1)
        self.length, self.vocab_size, self.batch_size = length, vocab_size, batch_size or rows
        self._apply = apply_fn
        self._reduced = jax.jit(self._reduce)

    def __call__(self, tokens: Int[Any, "examples n"], labels: Int[Any, "examples n"]) -> LabelScores:
        """Score the labels of all examples.

        Args:
            tokens: int (examples, n), n at most `length`.
            labels: int (examples, n), the token that the logits at this position should predict, or `IGNORE`.

        Raises:
            TypeError, ValueError: arrays of another shape or dtype, tokens or labels outside the vocabulary,
                no label at all, an output that is not (B, N, V) logits, or a loss that is not finite.
        """
        tokens, labels = self._checked(tokens, labels)
        found = labels != IGNORE
        row, position = np.nonzero(found)
        examples, rows = len(tokens), self.batch_size
        pad = (0, -examples % rows), (0, self.length - tokens.shape[1])
        tokens, labels = np.pad(tokens, pad), np.pad(labels, pad, constant_values=IGNORE)
        batches = [
            self._call(tokens[i : i + rows], labels[i : i + rows]) for i in range(0, len(tokens), rows)
        ]
        loss, correct = (np.concatenate(parts)[row, position] for parts in zip(*batches, strict=True))
        bad = np.flatnonzero(~np.isfinite(loss))
        if bad.size:
            where = f"row {row[bad[0]]}, position {position[bad[0]]}"
            expect(False, "logits", f"a loss of {loss[bad[0]]} at {where}", "finite losses")
        return LabelScores(row.astype(np.int32), position.astype(np.int32), loss, correct)

    def _call(self, tokens: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = self._apply(jnp.asarray(tokens))
        self._expect_logits(logits)
        loss, correct = self._reduced(jnp.asarray(logits), labels)
        return np.asarray(loss), np.asarray(correct)

    def _reduce(self, logits: Float[Array, "B N V"], labels: Int[Array, "B N"]) -> tuple[Array, Array]:
        logits = logits.astype(jnp.float32)
        labelled = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
        loss = jax.nn.logsumexp(logits, axis=-1) - labelled
        return loss, jnp.argmax(logits[..., : self.vocab_size], axis=-1) == labels

    def _checked(self, tokens: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
        expect_array("tokens", tokens, ("examples", "length"), "integer")
        expect_array("labels", labels, tuple(tokens.shape), "integer")
        tokens, labels = np.asarray(tokens), np.asarray(labels)
        expect(
            tokens.shape[1] <= self.length, "tokens", f"{tokens.shape[1]} per row", f"at most {self.length}"
        )
        known = labels[labels != IGNORE]
        expect(known.size > 0, "labels", "all IGNORE", "at least one label")
        for name, values in (("tokens", tokens), ("labels", known)):
            low, high = int(values.min()), int(values.max())
            inside = low >= 0 and high < self.vocab_size
            wrong = f"from {low} to {high}"
            expect(inside, name, wrong, f"values from 0 to {self.vocab_size - 1}, below vocab_size")
        return tokens.astype(np.int32), labels.astype(np.int32)

    def _expect_logits(self, logits: Any) -> None:
        """Check the shape and dtype of the model's output."""
        shape = self.batch_size, self.length
        if not hasattr(logits, "shape") or not hasattr(logits, "dtype"):
            wanted = "an array of logits; select it, as in lambda tokens: model(tokens)[0]"
            raise TypeError(f"apply_fn returned {type(logits).__name__}: expected {wanted}")
        expect_array("logits", logits, (*shape, "vocabulary"), "floating")
        size = logits.shape[-1]
        expect(size >= self.vocab_size, "vocab_size", self.vocab_size, f"at most {size}, the model's logits")
