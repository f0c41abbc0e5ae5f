"""Find tokens that a model could recall: the last ones of repeated bigrams (Zoology, sections 3.1, C.1).

Token t of a sequence is a repeat if the pair (x_{t-1}, x_t) is also (x_{s-1}, x_s) for an s < t; its distance
is t - s for the largest such s. A repeat is an AR hit if the pair is rare in the training data.
"""

import numpy as np
from jaxtyping import Bool, Int32, Integer

from based_jax.data import PackedTokens
from based_jax.evals.bigrams.table import bigram_keys

MAX_COUNT = 1250
"""Maximum training count of a rare pair in Zoology and Based."""


def repeat_distances(
    inputs: Integer[np.ndarray, "B N"],
    targets: Integer[np.ndarray, "B N"],
    mask: Bool[np.ndarray, "B N"] | None = None,
    segment_ids: Integer[np.ndarray, "B N"] | None = None,
) -> Int32[np.ndarray, "B N"]:
    """Count the tokens since the previous occurrence of each target's bigram; O(N log N) per row.

    Args:
        targets: tokens below 2^32.
        mask: False for padding, to the right of a row's tokens.
        segment_ids: not decreasing along a row; pairs of other segments do not count.

    Returns:
        int32 (B, N), at least 1 for a repeat, else 0, as for padding.
    """
    keys = bigram_keys(inputs, targets)
    order = np.argsort(keys, axis=1, kind="stable")  # equal pairs are adjacent, in order of position
    keys = np.take_along_axis(keys, order, axis=1)
    same = keys[:, 1:] == keys[:, :-1]
    if segment_ids is not None:
        # If the previous equal pair is in another segment, so are all before it.
        segments = np.take_along_axis(np.asarray(segment_ids), order, axis=1)
        same &= segments[:, 1:] == segments[:, :-1]
    gaps = np.where(same, order[:, 1:] - order[:, :-1], 0)
    distances = np.zeros(keys.shape, np.int32)
    np.put_along_axis(distances, order[:, 1:], gaps.astype(np.int32), axis=1)
    # Padding follows all tokens, so it contains no token's previous pair.
    return distances if mask is None else np.where(mask, distances, 0).astype(np.int32)


def stream_distances(
    packed: PackedTokens, length: int | None, cross_documents: bool, stride: int | None = None
) -> tuple[Int32[np.ndarray, " targets"], Int32[np.ndarray, " targets"]]:
    """Return the index of each target's sequence in a stream, and its `repeat_distances` there.

    Args:
        length: the stream is read in windows of this many targets; None: document by document.
        cross_documents: bigrams of other documents in the window count too.
        stride: targets between the beginnings of windows; a target belongs to the first that contains it.

    Returns:
        Two arrays int32 (T - 1,).
    """
    target = np.arange(len(packed) - 1)
    # A target belongs to the document of the last separator among its inputs.
    document = np.searchsorted(packed.starts, target, side="right") - 1
    sequence, visible = document, packed.starts[document]
    if length is not None:
        step = stride or length
        sequence = np.maximum((target - length) // step + 1, 0)
        visible = sequence * step if cross_documents else np.maximum(sequence * step, visible)
    (distance,) = repeat_distances(packed.tokens[None, :-1], packed.tokens[None, 1:])
    # If the last occurrence is not visible, neither are those before it.
    return sequence.astype(np.int32), np.where(target - distance >= visible, distance, 0).astype(np.int32)


def is_hit(
    distances: Integer[np.ndarray, "..."],
    counts: Integer[np.ndarray, "..."] | None,
    max_count: int = MAX_COUNT,
) -> Bool[np.ndarray, "..."]:
    """Return a mask of the AR hits: repeats whose pair occurs at most `max_count` times in training.

    Source: Based, Table 1.

    Args:
        counts: training counts of the pairs; None for all repeats.
    """
    repeats = np.asarray(distances) > 0
    return repeats if counts is None else repeats & (np.asarray(counts) <= max_count)
