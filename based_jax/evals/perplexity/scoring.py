"""Score every token of a stream: its loss, and the model's most likely token.

Two ways to read a stream:

windows    independent rows of `length` tokens (the papers' protocol)
documents  each document from its separator to its end, `length` tokens at a time, with the model's state

All calls of the model have the same shape; short rows are padded and masked.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jaxtyping import Float32, Int32

from based_jax.data import PackedTokens, held_out_batches
from based_jax.evals.target_scores import expect_left_to_right, expect_positions, target_scores
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Params
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

    def put(self, positions: Any, scores: Any, mask: np.ndarray) -> None:
        """Copy the entries of a batch where `mask` is True.

        Args:
            positions: index or slice of the targets to set, as many as there are True entries.
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
    cross_documents: bool = False,
    advance: Callable[[int], None] = lambda count: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Scores:
    """Score a stream in windows, each target exactly once; see `PackedTokens.window`.

    Args:
        cross_documents: windows see across document boundaries, as in the authors' training.
        advance: called with the number of targets scored since its last call.
        interrupted: called after each batch; if it returns True the call ends, with NaN for the other losses.

    Raises:
        ValueError: a model that is not causal, tokens outside its vocabulary, or a loss that is not finite.
    """
    expect_left_to_right(model, packed.tokens.max())
    expect_positions(model, "length", length)
    scores, done = Scores.empty(len(packed) - 1), 0
    batches = held_out_batches(packed, length=length, batch_size=batch_size, cross_documents=cross_documents)
    for batch in batches:
        result, _ = _score(model, params, None, batch)
        mask = batch["mask"]
        count = int(mask.sum())
        scores.put(slice(done, done + count), result, mask)
        done += count
        advance(count)
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
    expect_left_to_right(model, packed.tokens.max())
    expect(length >= 1, "length", length, "at least 1")
    expect(batch_size >= 1, "batch_size", batch_size, "at least 1")
    ends = np.append(packed.starts, len(packed) - 1)
    sizes = np.diff(ends)  # targets per document: its text and the next separator
    expect_positions(model, "tokens of a document", int(sizes.max()))
    scores = Scores.empty(len(packed) - 1)
    longest_first = np.argsort(-sizes, kind="stable")  # rows of a batch get similar lengths
    for first in range(0, len(sizes), batch_size):
        group = longest_first[first : first + batch_size]
        chunks = -(-int(sizes[group[0]]) // length)
        capacity = length << (chunks - 1).bit_length()
        state = model.init_state(batch_size, capacity)
        for chunk in range(chunks):
            inputs, targets = np.full((2, batch_size, length), packed.tokens[0], np.int32)
            mask = np.zeros((batch_size, length), bool)
            positions = []
            for row, document in enumerate(group):
                begin = int(ends[document]) + chunk * length
                count = min(max(int(ends[document + 1]) - begin, 0), length)
                inputs[row, :count] = packed.tokens[begin : begin + count]
                targets[row, :count] = packed.tokens[begin + 1 : begin + count + 1]
                mask[row, :count] = True
                positions.append(np.arange(begin, begin + count))
            result, state = _score(model, params, state, {"inputs": inputs, "targets": targets, "mask": mask})
            scores.put(np.concatenate(positions), result, mask)
            advance(int(mask.sum()))
            if interrupted():
                return scores
    return scores


@functools.partial(jax.jit, static_argnames=("model",), donate_argnames=("state",))
def _score(model, params, state, batch):
    given = {"segment_ids": batch.get("segment_ids"), "mask": batch["mask"]}
    hidden, state = model.apply(params, batch["inputs"], state, **given, method="hidden")

    def row(arrays):
        """Score one row at a time, as the logits of a batch may be larger than the model."""
        return target_scores(model, params, *arrays)

    return lax.map(row, (hidden, batch["targets"])), state
