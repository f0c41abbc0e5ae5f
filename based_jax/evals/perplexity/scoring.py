"""Score every token of a stream: its loss, and the model's most likely token.

Two ways to read a stream:

windows    independent rows of `length` tokens (the papers' protocol), which may overlap
documents  each document from its separator to its end, `length` tokens at a time, with the model's state

All calls of the model have the same shape; short rows are padded and masked.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float32, Int32

from based_jax.data import PackedTokens
from based_jax.generate.states import longest_text
from based_jax.models.language_model import LanguageModel, make_mixer
from based_jax.typing import Array, Float, Int, Params
from based_jax.validate import expect


class Scores(NamedTuple):
    """One entry per target, the tokens 1 ... T - 1 of a stream, in order."""

    loss: Float32[np.ndarray, " targets"]
    """-log of the target's probability, in nats"""
    predicted: Int32[np.ndarray, " targets"]
    """the most likely token"""
    predicted_loss: Float32[np.ndarray, " targets"]
    """-log of its probability, in nats"""

    @classmethod
    def empty(cls, size: int) -> "Scores":
        """Return unscored entries, with NaN as losses."""
        nan = np.full(size, np.nan, np.float32)
        return cls(nan, np.zeros(size, np.int32), nan.copy())

    def put(self, positions: np.ndarray, scores: Any, mask: np.ndarray) -> None:
        """Copy the entries of a batch where `mask` is True.

        Args:
            positions: indices of the targets to set, as many as there are True entries.
            scores: one array per field, of the shape of the mask, (B, N).
            mask: (B, N) booleans.

        Raises:
            ValueError: NaN or infinity among the scores to copy.
        """
        for own, new in zip(self, scores, strict=True):
            values = np.asarray(new)[mask]
            wanted = "finite losses from the checkpoint"
            expect(bool(np.isfinite(values).all()), "loss", "NaN or infinite", wanted)
            own[positions] = values


def score_windows(
    model: LanguageModel,
    params: Params,
    packed: PackedTokens,
    *,
    length: int,
    batch_size: int,
    stride: int | None = None,
    cross_documents: bool = False,
    advance: Callable[[int], None] = lambda count: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Scores:
    """Score a stream in windows, each target exactly once, in the first window that contains it.

    Args:
        length: targets per window.
        stride: targets between the beginnings of windows, so that all windows but the first score only their
            last `stride` targets; None: `length`.
        cross_documents: windows see across document boundaries, as in the authors' training.
        advance: called with the number of targets scored since its last call.
        interrupted: called after each batch; if it returns True the call ends, with NaN for the other losses.

    Raises:
        ValueError: a model that is not causal, tokens outside its vocabulary, a size out of range, or a loss
            that is not finite.
    """
    _check(model, packed, length, batch_size)
    expect_positions(model, "length", length)
    stride = length if stride is None else stride
    expect(1 <= stride <= length, "stride", stride, f"from 1 to {length}, the length")
    size = len(packed) - 1
    scores = Scores.empty(size)
    begins = np.arange(0, max(size - length, 0) + stride, stride)
    for first in range(0, len(begins), batch_size):
        rows = begins[first : first + batch_size]
        positions, batch = _rows(packed, rows, np.minimum(rows + length, size), batch_size, length)
        if not cross_documents:
            batch["segment_ids"] = np.searchsorted(packed.starts, positions, side="right").astype(np.int32)
        result, _ = _score(model, params, None, batch)
        is_new = (positions[:, :1] == 0) | (np.arange(length) >= length - stride)
        scored = batch["mask"] & is_new
        scores.put(positions[scored], result, scored)
        advance(int(scored.sum()))
        if interrupted():
            break
    return scores


def score_documents(
    model: LanguageModel,
    params: Params,
    packed: PackedTokens,
    *,
    length: int,
    batch_size: int,
    advance: Callable[[int], None] = lambda count: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Scores:
    """Score a stream document by document, of any length.

    Args and errors: see `score_windows`. `length` is the number of tokens per call, which affects only the
    speed; full attention is compiled again for each power of two of calls that a batch's longest document
    needs.
    """
    _check(model, packed, length, batch_size)
    ends = np.append(packed.starts, len(packed) - 1)
    sizes = np.diff(ends)  # targets per document: its text and the next separator
    expect_readable(model, "tokens of a document", int(sizes.max()))
    scores = Scores.empty(len(packed) - 1)
    longest_first = np.argsort(-sizes, kind="stable")  # rows of a batch get similar lengths
    for first in range(0, len(sizes), batch_size):
        group = longest_first[first : first + batch_size]
        chunks = -(-int(sizes[group[0]]) // length)
        capacity = length << (chunks - 1).bit_length()
        state = model.init_state(batch_size, capacity)
        for chunk in range(chunks):
            begins = ends[group] + chunk * length
            positions, batch = _rows(packed, begins, ends[group + 1], batch_size, length)
            result, state = _score(model, params, state, batch)
            mask = batch["mask"]
            scores.put(positions[mask], result, mask)
            advance(int(mask.sum()))
            if interrupted():
                return scores
    return scores


def _check(model: LanguageModel, packed: PackedTokens, length: int, batch_size: int) -> None:
    expect_left_to_right(model, packed.tokens.max())
    expect(length >= 1, "length", length, "at least 1")
    expect(batch_size >= 1, "batch_size", batch_size, "at least 1")


def _rows(
    packed: PackedTokens, begins: np.ndarray, ends: np.ndarray, batch_size: int, length: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return a batch of `length` targets from each of `begins` on, and their positions in the stream, from 0.

    The mask is False from `ends` on, and in the rows that fill up the batch.
    """
    missing = batch_size - len(begins)
    positions = np.pad(begins, (0, missing))[:, None] + np.arange(length)
    mask = positions < np.pad(ends, (0, missing))[:, None]
    inside = np.minimum(positions, len(packed) - 2)
    inputs, targets = (packed.tokens[inside + shift].astype(np.int32) for shift in (0, 1))
    return positions, {"inputs": packed.as_inputs(inputs), "targets": targets, "mask": mask}


@functools.partial(jax.jit, static_argnames=("model",), donate_argnames=("state",))
def _score(model, params, state, batch):
    given = {"segment_ids": batch.get("segment_ids"), "mask": batch["mask"]}
    hidden, state = model.apply(params, batch["inputs"], state, **given, method="hidden")

    def row(arrays):
        """Score one row at a time, as the logits of a batch may be larger than the model."""
        return target_scores(model, params, *arrays)

    return lax.map(row, (hidden, batch["targets"])), state


def target_scores(
    model: LanguageModel, params: Params, hidden: Float[Array, "N D"], targets: Int[Array, " N"]
) -> tuple[Float[Array, " N"], Int[Array, " N"], Float[Array, " N"]]:
    """Compute the losses of targets, and of the most likely tokens at their positions.

    The softmax is over the padded vocabulary, as in training; the most likely token is never padding.

    Returns:
        The targets' losses in nats, the most likely tokens, and their losses.
    """
    logits: Any = model.apply(params, hidden, method="unembed")
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    loss = -jnp.take_along_axis(log_p, targets[:, None], axis=-1)[:, 0]
    known = log_p[:, : model.config.vocab_size]
    return loss, jnp.argmax(known, axis=-1).astype(jnp.int32), -jnp.max(known, axis=-1)


def expect_positions(model: LanguageModel, argument: str, length: int) -> None:
    """Check that the model has positions for `length` tokens."""
    limit = model.config.max_positions
    expect(not limit or length <= limit, argument, length, f"at most {limit}, the model's positions")


def expect_readable(model: LanguageModel, argument: str, length: int) -> None:
    """Check that the model can read `length` tokens with a state, which long filters also limit."""
    limit = longest_text(model.config)
    expect(not limit or length <= limit, argument, length, f"at most {limit}, the model's longest text")


def expect_left_to_right(model: LanguageModel, highest: Any) -> None:
    """Raise an error for mixers that are not causal, or a vocabulary without `highest`, the largest token."""
    config = model.config
    for index in range(config.num_layers):
        layer = f"layer {index}, {config.layer(index).mixer}"
        expect(make_mixer(config, index).causal, "checkpoint", layer, "causal mixers only")
    size = config.vocab_size
    expect(int(highest) < size, "tokenizer", f"token {int(highest)}", f"tokens below {size}")
