"""Small layers in NumPy, right ones and ones with faults that public libraries have had.

A layer is a step from a state (rows, slots, width) and a token to an output and the next state.
"""

import dataclasses

import numpy as np

from based_jax.testing.layers import FEATURES, Layer

WIDTH, DECAY, SPAN = 3, 0.8, 4
FORWARD = tuple(feature for feature in FEATURES if feature != "gradient")


def layer(step, slots, *, drops_state=False, keeps_documents=False, in_place=False, **facts):
    """The layer of a step: step(state, x, real) -> (y, state), real (rows, 1) is False at padding."""

    def init_state(rows):
        return np.zeros((rows, slots, WIDTH), np.float32)

    def forward(x, *, segment_ids=None, mask=None, state=None):
        given = state
        if state is None or (drops_state and x.shape[1] > 1):
            state = init_state(len(x))
        ids = np.zeros(x.shape[:2], int) if segment_ids is None or keeps_documents else segment_ids
        mask, outputs = np.ones(x.shape[:2], bool) if mask is None else mask, []
        for t in range(x.shape[1]):
            begins = ids[:, t] != ids[:, max(t - 1, 0)]
            y, state = step(np.where(begins[:, None, None], 0, state), x[:, t], mask[:, t, None])
            outputs.append(y)
        if in_place and given is not None:
            given[:] = state
        return np.stack(outputs, axis=1), state

    facts = {"supports": FORWARD, "longest": 40} | facts
    return Layer(forward, WIDTH, init_state=init_state, **facts)


def linear_attention(normalizes_padding=False):
    """y = sum of w v / sum of w with w = exp(v), elementwise."""

    def step(state, x, real):
        w = np.exp(x)
        state = state + np.stack([w * x * real, w * (real | normalizes_padding)], axis=1)
        return state[:, 0] / (state[:, 1] + 1e-6), state

    return layer(step, 2)


def recurrence(decays_over_padding=False, ignores_ids_backward=False, **faults):
    """h = a h + x, and its gradient, the same recurrence from the end."""

    def step(state, x, real):
        decay = np.where(real | decays_over_padding, np.float32(DECAY), 1)[:, None]
        state = decay * state + (x * real)[:, None]
        return state[:, 0], state

    forward = layer(step, 1)

    def gradient(x, dy, segment_ids=None, mask=None):
        ids = None if segment_ids is None or ignores_ids_backward else segment_ids[:, ::-1]
        mask = np.ones(x.shape[:2], bool) if mask is None else mask
        dx, _ = forward.forward(dy[:, ::-1], segment_ids=ids, mask=mask[:, ::-1])
        return dx[:, ::-1] * mask[..., None]

    made = layer(step, 1, **faults)
    return dataclasses.replace(made, gradient=gradient, supports=tuple(FEATURES))


def convolution(**faults):
    """y_t = x_t + x_{t-1} / 2"""

    def step(state, x, real):
        return x + state[:, 0] / 2, np.where(real[:, None], x[:, None], state)

    return layer(step, 1, **faults)


def window(span=SPAN):
    """The mean of the last SPAN tokens; single tokens that continue from a state keep `span` in a ring."""

    def step(state, x, real, span=SPAN):
        shifted = np.where(real[:, None], np.concatenate([state[:, 1:], x[:, None]], axis=1), state)
        return shifted[:, -span:].sum(axis=1) / SPAN, shifted

    whole, ring = layer(step, SPAN), layer(lambda *arguments: step(*arguments, span), SPAN)

    def forward(x, *, state=None, **context):
        chosen = ring if state is not None and x.shape[1] == 1 else whole
        return chosen.forward(x, state=state, **context)

    return dataclasses.replace(whole, forward=forward)


def normed_over_the_batch():
    return Layer(lambda x: (x - x.mean(axis=0, keepdims=True), None), WIDTH)


def sees_the_next_token():
    return Layer(lambda x: (x + np.roll(x, -1, axis=1), None), WIDTH)


RIGHT = (linear_attention, recurrence, convolution, window)

FAULTS = {
    "a normaliser that counts padding": (
        linear_attention(normalizes_padding=True),
        {"padding right": 2, "padding left": 2, "padding both": 3},
    ),
    "a state that decays over padding": (
        recurrence(decays_over_padding=True),
        {"padding right": 2, "padding both": 3},
    ),
    "a convolution over documents": (convolution(keeps_documents=True), {"packing": 2}),
    "an initial state that chunks drop": (recurrence(drops_state=True), {"split": 3, "chunks": 3}),
    "a ring with a token too few": (window(SPAN - 1), {"split": SPAN, "chunks": SPAN, "decoding": SPAN}),
    "a backward pass without documents": (recurrence(ignores_ids_backward=True), {"gradient packing": 2}),
    "a state that a call changes": (recurrence(in_place=True), {"rollback": 2}),
    "a norm over the batch": (normed_over_the_batch(), {"batch": 1}),
    "an output that sees the next token": (sees_the_next_token(), {"causality": 2}),
}
"""name -> the layer, and the laws that it breaks with the tokens of the smallest input that does"""
