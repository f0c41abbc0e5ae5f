"""An oracle: the induction head of Zoology's Proposition 4.3, on tokens, with weights set by hand.

    h_i = onehot(x_i), zero for the filler        embedding
    p_j = h_(j-1)                                 a shift: short convolution, or a head that looks one back
    s_ij = c <h_i, p_j> - j,  j <= i              attention; of several matches the first wins
    y_i = argmax of sum_j softmax(s_i)_j h_j      read-out

With random filler a key of the context can come back there by chance, without a value after it; the
first match is always the context's. `latest` prefers the last match instead (keys with updates), and `order`
counts how many tokens in a row must match (keys of two tokens).
"""

import numpy as np


def induction_head(
    tokens: np.ndarray, *, filler: int | None = 0, order: int = 1, latest: bool = False
) -> np.ndarray:
    """The token predicted at every position, (n, N). Inner products of one-hot rows are comparisons."""
    n, length = tokens.shape
    equal = (tokens[:, :, None] == tokens[:, None, :]) & (tokens != filler)[:, None, :]
    scores = np.zeros((n, length, length))
    for back in range(order):  # <h_(i-back), h_(j-1-back)>
        scores[:, back:, back + 1 :] += equal[:, : length - back, : length - back - 1]
    scale = 4.0 * length  # above what the positions can add up to
    position = np.arange(length)
    scores = scale * scores + (1 if latest else -1) * position
    scores = np.where(position[:, None] >= position, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    # The read-out's sum by token, at one position of each token: which of them argmax names does not matter.
    votes = np.einsum("nij,njk->nik", weights, equal.astype(float), optimize=True)
    return np.take_along_axis(tokens, votes.argmax(axis=-1), axis=1)


def accuracy(predicted: np.ndarray, labels: np.ndarray, ignore: int = -100) -> float:
    """Fraction of the labels that are met."""
    counts = labels != ignore
    return float((predicted == labels)[counts].mean())
