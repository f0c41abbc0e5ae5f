"""Every op on sequences names the argument of a wrong shape, dtype or value.

What is special to an op, such as options that exclude each other, is in its own file.
"""

import dataclasses
import inspect

import pytest

from based_jax import ops
from tests.arrays import blank, ones

Q, V, X, TAPS = ones((2, 3, 2, 4)), ones((2, 3, 2, 5)), ones((2, 3, 4)), ones((3, 4))
HEADS, MODES = ones((2, 3, 2)), ones((2, 3, 2))
QKV = {"q": Q, "k": Q, "v": V}
TUPLES = {"q": Q, "ks": (Q, Q), "vs": (V, V)}
ARGUMENTS = {
    "conv_attention": QKV | {"starts": (0, 2)},
    "delta_rule": QKV | {"beta": HEADS, "log_decay": HEADS},
    "diagonal_ssm": {"x": V, "log_a": MODES, "weight": MODES, "skip": ones(2)},
    "generalized_delta_rule": QKV | {"a": Q, "b": Q, "log_decay": HEADS},
    "hyper_attention": TUPLES,
    "hyper_feature_attention": {"qs": (Q, Q), "ks": (Q, Q), "v": V},
    "landmark_attention": QKV | {"tokens_per_landmark": 2},
    "linear_attention": QKV | {"log_decay": HEADS},
    "linear_hyper_attention": TUPLES,
    "linear_recurrence": QKV | {"log_decay": HEADS},
    "long_conv": {"x": X, "kernel": TAPS, "skip": ones(4)},
    "nystrom_attention": QKV | {"num_landmarks": 2},
    "scatterbrain_attention": QKV | {"directions": ones((2, 4)), "left": 1},
    "selective_scan": {"x": X, "dt": X, "A": ones((4, 2)), "B": ones((2, 3, 3))[..., :2], "C": X[..., :2]},
    "short_conv": {"x": X, "kernel": TAPS, "bias": ones(4)},
    "softmax_attention": QKV,
    "taylor_attention": QKV,
    "token_shift": {"x": X},
    "wkv": {"k": X, "v": X, "log_decay": ones(4), "bonus": ones(4)},
}
STATES = {
    "delta_rule": lambda rows: ops.init_linear_recurrence_state(rows, 2, 4, 5),
    "diagonal_ssm": lambda rows: ops.init_diagonal_ssm_state(rows, 2, 5, 3),
    "linear_attention": lambda rows: ops.init_linear_attention_state(rows, 2, 4, 5),
    "linear_hyper_attention": lambda rows: ops.init_linear_hyper_state(rows, 2, 2, 4, 5),
    "long_conv": lambda rows: ops.init_long_conv_state(rows, 5, 4),
    "selective_scan": lambda rows: ops.init_diagonal_scan_state(rows, (4, 2)),
    "short_conv": lambda rows: ops.init_short_conv_state(rows, 4, 3),
    "softmax_attention": lambda rows: ops.init_kv_cache(rows, 8, 2, 4, 5),
    "taylor_attention": lambda rows: ops.init_taylor_state(rows, 2, 4, 5),
    "token_shift": lambda rows: ops.init_token_shift_state(rows, 4),
    "wkv": lambda rows: ops.init_wkv_state(rows, 4),
}


def wrong(name, arguments):
    """Yield changes of the arguments, the error, and its message."""
    parameters = inspect.signature(getattr(ops, name)).parameters
    arrays = {key: value for key, value in arguments.items() if hasattr(value, "shape")}
    for number, (key, value) in enumerate(arrays.items()):
        yield {key: value[..., None, None]}, ValueError, f"{key} has shape"
        yield {key: value.astype(bool)}, TypeError, f"{key} has dtype bool"
        yield {key: value[..., :0]}, ValueError, f"{key} has shape"
        if number and value.shape[:2] == (2, 3):
            yield {key: value[:, :2]}, ValueError, " has shape"
    if "mask" in parameters:
        yield {"mask": ones((2, 3))}, TypeError, "mask has dtype float32"
        yield {"mask": ones((1, 3), bool)}, ValueError, "mask has shape"
    if "segment_ids" in parameters:
        yield {"segment_ids": ones((2, 3))}, TypeError, "segment_ids has dtype float32"
        yield {"segment_ids": ones((2, 4), int)}, ValueError, "segment_ids has shape"
    if "chunk_size" in parameters:
        yield {"chunk_size": 0}, ValueError, "chunk_size = 0: expected at least 1"
    if "implementation" in parameters:
        yield {"implementation": "torch"}, ValueError, "implementation = 'torch': expected None or one of"
    if name in STATES:
        yield {"initial_state": blank(STATES[name], 3)}, ValueError, "state.* has shape"
        state = blank(STATES[name], 2)
        for field in dataclasses.fields(state):
            if hasattr(x := getattr(state, field.name), "shape"):
                narrow = dataclasses.replace(state, **{field.name: x[..., :1]})
                yield {"initial_state": narrow}, ValueError, rf"initial_state\.{field.name} has shape"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_wrong_argument_is_named(unchecked, name):
    arguments = ARGUMENTS[name]
    for changes, error, message in wrong(name, arguments):
        with pytest.raises(error, match=message):
            getattr(ops, name)(**arguments | changes)
