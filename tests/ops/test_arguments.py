"""Every op names the argument of a wrong shape, dtype or value."""

import dataclasses
import functools
import inspect

import jax
import numpy as np
import pytest

from based_jax import ops
from based_jax.ops import conv_basis, selection
from tests.arrays import blank, ones
from tests.marks import slow_but
from tests.tolerances import FLOAT32, assert_close

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
    "linearized_attention": QKV
    | {"map_q": ones((2, 4, 3)), "map_k": ones((2, 4, 3)), "mean_key": ones((2, 4))}
    | {"log_factor": ones(2), "left": 1},
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
    "landmark_attention": lambda rows: ops.init_landmark_state(rows, 4, 2, 2, 4, 5),
    "linear_attention": lambda rows: ops.init_linear_attention_state(rows, 2, 4, 5),
    "linear_hyper_attention": lambda rows: ops.init_linear_hyper_state(rows, 2, 2, 4, 5),
    "linearized_attention": lambda rows: ops.init_linearized_state(rows, 1, 2, 4, 5, 10),
    "long_conv": lambda rows: ops.init_long_conv_state(rows, 5, 4),
    "scatterbrain_attention": lambda rows: ops.init_linearized_state(rows, 1, 2, 4, 5, 4),
    "selective_scan": lambda rows: ops.init_diagonal_scan_state(rows, (4, 2)),
    "short_conv": lambda rows: ops.init_short_conv_state(rows, 4, 3),
    "softmax_attention": lambda rows: ops.init_kv_cache(rows, 8, 2, 4, 5),
    "taylor_attention": lambda rows: ops.init_taylor_state(rows, 2, 4, 5),
    "token_shift": lambda rows: ops.init_token_shift_state(rows, 4),
    "wkv": lambda rows: ops.init_wkv_state(rows, 4),
}


def options_of(name):
    return inspect.signature(getattr(ops, name)).parameters


def wrong(name, arguments):
    """Yield changes of the arguments, the error, and its message."""
    parameters = options_of(name)
    arrays = {key: value for key, value in arguments.items() if hasattr(value, "shape")}
    for number, (key, value) in enumerate(arrays.items()):
        yield {key: value[..., None, None]}, ValueError, f"{key} has shape"
        yield {key: value.astype(bool)}, TypeError, f"{key} has dtype bool"
        yield {key: value[..., :0]}, ValueError, f"{key} has shape"
        yield {key: np.asarray(value, object)}, TypeError, f"{key} has dtype object"
        if not number:
            yield {key: None}, TypeError, f"{key} = None: expected an array"
        if number and value.shape[:2] == (2, 3):
            yield {key: value[:, :2]}, ValueError, " has shape"
    if "mask" in parameters:
        yield {"mask": ones((2, 3))}, TypeError, "mask has dtype float32"
        yield {"mask": ones((1, 3), bool)}, ValueError, "mask has shape"
        late = {next(iter(arrays), "q"): None, "mask": np.array([[0, 1, 1]] * 2, bool)}
        yield late, TypeError, " = None: expected an array"
    if "segment_ids" in parameters:
        yield {"segment_ids": ones((2, 3))}, TypeError, "segment_ids has dtype float32"
        yield {"segment_ids": ones((2, 4), int)}, ValueError, "segment_ids has shape"
    if "chunk_size" in parameters:
        yield {"chunk_size": 0}, ValueError, "chunk_size = 0: expected an integer, at least 1"
        yield {"chunk_size": 1.5}, ValueError, "chunk_size = 1.5: expected an integer"
    if "scale" in parameters:
        for scale in ("0.5", ones(2)):
            yield {"scale": scale}, ValueError, "scale = .*: expected a number"
    if "implementation" in parameters:
        yield {"implementation": "torch"}, ValueError, "implementation = 'torch': expected None or one of"
    if name in STATES:
        yield {"initial_state": blank(STATES[name], 3)}, ValueError, "state.* has shape"
        yield {"initial_state": 3.0}, ValueError, "initial_state = 'float': expected a"
        state = blank(STATES[name], 2)
        yield {"initial_state": state, "mask": ones((3, 3), bool)}, ValueError, "mask has shape"
        for field in dataclasses.fields(state):
            if hasattr(x := getattr(state, field.name), "shape"):
                narrow = dataclasses.replace(state, **{field.name: x[..., :1]})
                yield {"initial_state": narrow}, ValueError, rf"initial_state\.{field.name} has shape"


SCALED = [name for name in ARGUMENTS if "scale" in options_of(name)]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_wrong_argument_is_named(unchecked, name):
    arguments = ARGUMENTS[name]
    for changes, error, message in wrong(name, arguments):
        with pytest.raises(error, match=message):
            getattr(ops, name)(**arguments | changes)


@pytest.mark.release
@pytest.mark.parametrize("name", slow_but(SCALED[::3], SCALED))
def test_a_scale_may_be_an_array(name):
    rng = np.random.default_rng(0)

    def drawn(leaf):
        return rng.normal(size=leaf.shape).astype(np.float32) if hasattr(leaf, "shape") else leaf

    arguments = jax.tree.map(drawn, ARGUMENTS[name])
    expected, found = (
        getattr(ops, name)(**arguments, scale=scale) for scale in (0.7, np.asarray(0.7, np.float32))
    )
    assert_close(found, expected, FLOAT32)
    with jax.enable_x64(True):  # a dtype wider than that of the arrays changes nothing
        function = functools.partial(getattr(ops, name), **arguments)
        wide = [jax.eval_shape(lambda scale=scale: function(scale=scale)) for scale in (np.float64(0.7), 0.7)]
    assert wide[0] == wide[1]
    assert np.abs(found - getattr(ops, name)(**arguments, scale=1.0)).max() > 1e-3


CACHE = functools.partial(blank, ops.init_kv_cache, 2)
LINEARIZED = functools.partial(blank, ops.init_linearized_state, 2, 1, 2)
SINKS = functools.partial(blank, ops.init_sink_cache, 2)
CONV = blank(ops.init_conv_attention_state, 2, 5, 2, 2, 4, 5)
SUMS = blank(ops.init_linear_attention_state, 2, 2, 16, 5)
STEP = {"q": Q[:, 0], "k": Q[:, 0], "v": V[:, 0]}
WHOLE, BASES = {"causal": False}, {"starts": None, "num_bases": 2}
BASIS = np.tril(np.arange(9.0).reshape(3, 3) + 1)
OTHERS = {
    "conv_decompose": {},
    "conv_matrix": {"anchors": BASIS},
    "conv_separation": {"kernels": BASIS, "sizes": [3, 2, 1], "width": 1},
    "conv_recover": {"q": Q, "k": Q, "terms": 2, "width": 2, "threshold": 1.0},
    "conv_score_error": {"q": Q, "k": Q},
    "advance": {"stream": None, "batch_size": 2, "length": 3},
    "hyper_taylor_map": {},
    "fixed_log_decay": {"num_heads": 2},
    "rms_norm": {"x": Q},
    "sink_attention": QKV | {"left": 2, "sinks": 1},
    "layer_norm": {"x": Q},
    "nystrom_attention": QKV,
    "landmark_attention": QKV,
    "rotary": {"x": Q, "positions": ones((2, 3), int)},
    "cosformer_features": {"x": Q, "positions": ones((1, 3), int), "max_length": 4},
    "symmetric_to_full": {"features": ones((2, 153)), "width": 8},
    "repeated": {"tokens": ones((1, 3), int)},
    "attention_of_some": QKV | {"chosen": ones((2, 3), bool)},
    "window_step": STEP | {"cache": CACHE(8, 2, 4, 5)},
    "taylor_step": STEP | {"state": blank(ops.init_taylor_state, 2, 2, 4, 5)},
}
SPECIAL = {
    "conv_decompose": [
        ({"matrix": BASIS[:2]}, r"matrix has shape \(2, 3\): expected \(N, 2\)"),
        ({"matrix": 3.0}, r"matrix has shape \(\)"),
        ({"matrix": 0 * BASIS}, r"max \|matrix\| = 0.0: expected more than tol"),
        ({"matrix": BASIS.T}, "above the diagonal = .*: expected 0, a lower"),
        ({"matrix": BASIS, "tolerance": -1}, "tolerance = -1: expected at least 0"),
        ({"matrix": BASIS * np.nan}, "not finite = 9: expected 0"),
    ],
    "conv_matrix": [({"starts": [0, 2, 1]}, r"starts = \[0, 2, 1\]: expected increasing")],
    "conv_separation": [
        *[({"width": width}, f"width = {width}: expected 1 to 1") for width in (0, 2)],
        *[({"sizes": s}, rf"sizes = \[{s[0]}, 3, 1\]: expected N = 3 >=") for s in ([3, 3, 1], [4, 3, 1])],
        ({"sizes": [3, 2]}, r"sizes has shape \(2,\): expected \(3,\)"),
        ({"sizes": [3.0, 2, 1]}, "sizes has dtype float64"),
    ],
    "conv_attention": [
        ({"starts": ()}, r"starts = \(\): expected integers ascending from 0"),
        ({"starts": (1, 2)}, r"starts = \(1, 2\)"),
        ({"starts": (0, 1.5)}, r"starts = \(0, 1.5\): expected integers"),
        ({"starts": (0, 2, 2)}, r"starts = \(0, 2, 2\)"),
        ({"starts": (0, 2**40)}, "starts = .*: expected at most 2147483647"),
        ({"initial_state": SUMS}, "'LinearAttentionState': expected a state with v"),
        ({"starts": np.zeros((2, 3), int)}, "starts has shape"),
        ({"starts": np.zeros((2, 2, 1))}, "starts has dtype"),
        ({"starts": np.ones((2, 2, 1), int)}, "starts = .*: expected integers ascending from 0"),
        ({"starts": None}, "num_bases = None: expected 1 to 3 segments, if no starts"),
        ({"starts": None, "num_bases": 4}, "num_bases = 4: expected 1 to 3 segments"),
        ({"num_bases": 3}, "num_bases = 3: expected None or 2, the number of starts"),
        (BASES | {"segment_ids": ones((2, 3), int)}, "starts = None"),
        (BASES | {"initial_state": CONV}, "starts = None: expected"),
        ({"gradient": "exact"}, "gradient = 'exact': expected one of 'surrogate', 'anchors'"),
        ({"return_state": True}, "return_state = True: expected False without a state"),
        ({"initial_state": CONV, "starts": (0,)}, r"state\.anchors has shape"),
    ],
    "conv_recover": [
        ({"q": Q[0]}, r"q has shape \(3, 2, 4\): expected \(B, N, H, K\)"),
        ({"k": V}, r"k has shape \(2, 3, 2, 5\): expected \(2, 3, 2, 4\)"),
        ({"terms": 0}, "terms = 0: expected at least 1"),
        ({"width": 0}, "width = 0: expected 1 to N = 3"),
        ({"width": 4}, "width = 4: expected 1 to N = 3"),
        ({"mask": ones((1, 4), bool)}, r"mask has shape \(1, 4\): expected \(2, 3\)"),
        ({"threshold": -1.0}, "threshold = -1.0: expected at least 0"),
        ({"search": "linear"}, "search = 'linear': expected one of 'binary', 'scan'"),
    ],
    "conv_score_error": [
        ({"starts": ones((1, 2), int)}, "starts has shape"),
        ({"starts": ones((2, 2, 2))}, "starts has dtype float32"),
    ],
    "advance": [
        ({"segment_ids": ones(3, int)}, r"segment_ids has shape \(3,\)"),
        ({"segment_ids": [[0, 0, 0]] * 2}, "segment_ids = "),
        ({"stream": blank(ops.init_stream, 1)}, r"state length has shape \(1,\)"),
    ],
    "hyper_attention": [
        ({"ks": (), "vs": ()}, "number of ks = 0: expected at least 1"),
        ({"ks": Q}, "ks = <class .*>: expected a tuple of an array for each slot"),
        ({"vs": (V,)}, "number of vs = 1: expected 2"),
        ({"ks": (Q, V)}, r"ks\[1\] has shape \(2, 3, 2, 5\)"),
        ({"vs": (V, Q)}, r"vs\[1\] has shape"),
        ({"ordered": False, "strict": True}, "strict = True: expected False if ordered"),
        ({"left": -1}, "left = -1"),
        ({"left": 1, "causal": False}, "left = 1: expected None"),
        ({"return_state": True}, "return_state = True"),
        ({"initial_state": CACHE(3, 2, 8, 5)}, r"initial_state\.k has shape"),
        ({"initial_state": CACHE(2, 2, 4, 5)}, "length = 3: expected at most max_len"),
        ({"initial_state": CACHE(3, 2, 4, 5), "left": 1}, "expected left . 1 = 2"),
        ({"initial_state": CACHE(3, 2, 4, 5), "causal": False}, "causal = False"),
    ],
    "hyper_feature_attention": [
        ({"qs": ()}, "factors in qs = 0: expected at least 1"),
        ({"ks": (Q,)}, "factors in ks = 1: expected as many as in qs, 2"),
        ({"ks": (Q, V)}, r"ks\[1\] has shape"),
        ({"qs": (Q, Q[:, :, :1])}, r"qs\[1\] has shape"),
        ({"qs": (Q.astype(int), Q)}, r"qs\[0\] has dtype"),
        ({"kind": "cosine"}, "kind = 'cosine': expected one of 'softmax', 'linear'"),
        ({"normalize": True}, "normalize = True: expected False unless causal, with kind ="),
        ({"return_state": True}, "return_state = True: expected False without an initial_state"),
        (WHOLE | {"kind": "linear", "return_state": True}, "False when causal is False"),
        (WHOLE | {"initial_state": CACHE(4, 2, 8, 5)}, "causal = False: expected True"),
        ({"kind": "linear", "initial_state": CACHE(4, 2, 8, 5)}, "initial_state = 'KVCache': expected a Lin"),
        ({"initial_state": SUMS}, "'LinearAttentionState': expected a KVCache with kind = 'soft"),
        ({"initial_state": CACHE(4, 2, 4, 5)}, r"initial_state\.k has shape"),
    ],
    "linear_hyper_attention": [
        ({"ks": (Q,)}, "number of vs = 2: expected 1"),
        ({"normalize": "rms"}, "normalize = 'rms': expected one of 'none'"),
        ({"ordered": False, "strict": True}, "strict = True: expected False if ordered"),
        (WHOLE | {"segment_ids": ones((2, 3), int)}, "segment_ids = .* when causal is"),
        (WHOLE | {"return_state": True}, "return_state = True"),
        (
            WHOLE | {"initial_state": blank(STATES["linear_hyper_attention"], 2)},
            "= 'LinearHyperState': expected",
        ),
    ],
    "hyper_taylor_map": [({"order": 1}, "order = 1: expected at least 2")],
    "fixed_log_decay": [({"exponent": 1.0}, "exponent = 1.0: expected below 0")],
    "linear_attention": [
        ({"feature_map": "taylor"}, "feature_map = 'taylor': expected a FeatureMap"),
        ({"eps": None}, "eps = None: expected a number"),
        ({"log_decay": -0.1}, r"log_decay = -0.1: expected an array of shape \(2, 3, 2\)"),
        ({"log_decay": ones(2)}, r"log_decay has shape \(2,\): expected \(2, 3, 2\)"),
    ],
    "linear_recurrence": [
        ({"v": ones((2, 3, 3, 5))}, "heads of v = 3: expected a multiple of heads of q and k"),
        ({"log_decay": ones((2, 3, 3))}, r"\(2, 3, 2\) or \(2, 3, 2, 4\); the first two may be 1"),
        ({"log_decay": ones((2, 3, 2, 1))}, r"or \(2, 3, 2, 4\)"),
        ({"log_decay": -0.1}, r"log_decay has shape \(\): expected"),
        ({"bonus": ones((3, 4))}, "bonus has shape"),
        ({"initial_state": CACHE(8, 2, 4, 5)}, "initial_state = 'KVCache': expected a state with kv"),
    ],
    "rms_norm": [
        ({"scale": ones(4), "x": Q.astype(int)}, "x has dtype int"),
        ({"scale": ones(1)}, r"scale has shape \(1,\): expected \(4,?\)"),
    ],
    "layer_norm": [
        ({"scale": ones(4, int)}, "scale has dtype int32"),
        ({"scale": ones(4), "bias": ones(3)}, "bias has shape"),
    ],
    "nystrom_attention": [
        ({"num_landmarks": 1.5}, "num_landmarks = 1.5: expected an integer"),
        ({"num_landmarks": 2, "iterations": 0}, "iterations = 0"),
    ],
    "landmark_attention": [({"tokens_per_landmark": 0}, "tokens_per_landmark = 0:")],
    "linearized_attention": [
        ({"left": -1}, "left = -1: expected"),
        ({"feature_map": "taylor"}, "feature_map = 'taylor': expected a FeatureMap"),
        ({"feature_map": ops.performer_map(ones((5, 4)))}, "width of queries and keys = 3: expected 4"),
        ({"implementation": "tiled"}, "implementation = 'tiled': expected None or one of 'pallas'"),
        ({"map_k": ones((2, 4, 2))}, r"map_k has shape \(2, 4, 2\): expected \(2, 4, 3\)"),
        ({"initial_state": LINEARIZED(3, 5, 10)}, r"state\.window\.k has shape"),
        ({"initial_state": LINEARIZED(4, 5, 6)}, r"state\.sums\.kv has shape"),
    ],
    "scatterbrain_attention": [({"left": -1}, "left = -1: expected")],
    "sink_attention": [
        ({"left": -1}, "left = -1: expected an integer, at least 0"),
        ({"sinks": 0}, "sinks = 0: expected an integer"),
        ({"return_state": True}, "return_state = True: expected False without a state"),
        ({"initial_state": SINKS(5, 1, 2, 4, 5)}, "slots of initial_state = 6"),
        ({"initial_state": SINKS(2, 3, 2, 4, 5)}, "initial_state.k"),
        ({"initial_state": CACHE(3, 2, 4, 5)}, "initial_state.k has shape"),
        ({"initial_state": SINKS(2, 1, 2, 4, 5, np.int8)}, "initial_state.k has dtype"),
        ({"initial_state": SINKS(2, 1, 2, 4, 5), "q": V}, "k has shape"),
        ({"implementation": "pallas"}, "implementation = 'pallas'"),
    ],
    "rotary": [
        ({"x": X}, "x has shape"),
        ({"x": Q.astype(int)}, "x has dtype"),
        ({"positions": ones(3, int)}, r"positions has shape \(3,\)"),
        ({"positions": ones((3, 3), int)}, r"positions has shape \(3, 3\): expected \(2, 3\)"),
        ({"positions": ones((1, 2), int)}, "positions has shape"),
        ({"positions": ones((2, 3))}, "positions has dtype"),
        ({"dim": 0}, "dim = 0"),
        ({"base": 0}, "base = 0: expected above 0"),
        ({"dim": 5}, "dim = 5: expected 1 to the head width 4"),
        ({"frequencies": np.ones(2)}, "frequencies = .*: expected None or a tuple of 2 numbers"),
        ({"frequencies": (1, float("nan"))}, "frequencies = .*: expected None or a tuple of 2 numbers"),
        ({"x": V}, "dim = 5: expected 1 to the head width 5"),
    ],
    "cosformer_features": [
        ({"max_length": 0}, "max_length = 0: expected at least 1"),
        ({"positions": ones((1, 2), int)}, r"positions has shape \(1, 2\): expected \(1, 3\)"),
    ],
    "symmetric_to_full": [({}, r"shape \(2, 153\): expected \(any, 45\)")],
    "repeated": [
        ({"tokens": ones((1, 3))}, "tokens has dtype float32"),
        ({"order": 0}, "order = 0: expected at least 1 token"),
    ],
    "attention_of_some": [({"count": 4}, "count = 4: expected 1 to N = 3")],
    "softmax_attention": [
        ({"q": None}, "q = None"),
        ({"q": ones((2, 3, 3, 4))}, "number of query heads = 3: expected a multiple of .* = 2"),
        *[({"left": left}, f"left = {left}: expected an integer") for left in (-1, 1.5)],
        (WHOLE | {"left": 2}, "left = 2: expected None when causal is False"),
        (WHOLE | {"allowed": np.greater}, "allowed = .*: expected None when causal is False"),
        ({"return_state": True}, "return_state = True"),
        (WHOLE | {"initial_state": CACHE(8, 2, 4, 5)}, "causal = False"),
        ({"initial_state": CACHE(8, 2, 4, 5, np.int8)}, r"initial_state\.k has dtype"),
        ({"initial_state": SINKS(3, 4, 2, 4, 5)}, "initial_state = 'SinkCache': expected a KVCache"),
        ({"initial_state": CACHE(8, 2, 4, 5), "left": 6}, "slots of initial_state = 8: expected left ."),
        ({"initial_state": CACHE(2, 2, 4, 5)}, "length = 3: expected at most max_length = 2"),
    ],
    "window_step": [
        *[({name: Q}, f"{name} has shape") for name in "qkv"],
        ({"cache": blank(ops.init_kv_cache, 1, 8, 2, 4, 5)}, r"initial_state\.k has shape"),
        ({"implementation": "mosaic"}, "implementation = 'mosaic'.* for window_step"),
        ({"implementation": "pallas"}, "implementation = 'pallas': runs on GPUs"),
        ({"positions": ones(3, int)}, r"positions has shape \(3,\): expected \(2,\)"),
        ({"positions": ones(2)}, "positions has dtype float32"),
        ({"rotary_dim": 9}, "dim = 9: expected 1 to the head width 4"),
    ],
    "taylor_attention": [
        ({"initial_state": blank(ops.init_linear_attention_state, 2, 2, 21, 5)}, "kv has shape")
    ],
    "taylor_step": [
        *[({name: Q}, f"{name} has shape") for name in "qkv"],
        ({"state": CACHE(8, 2, 4, 5)}, "initial_state = 'KVCache': expected a state with kv"),
        ({"state": blank(ops.init_taylor_state, 1, 2, 4, 5)}, r"initial_state\.kv has shape"),
        ({"implementation": "quadratic"}, "implementation = 'quadratic'"),
    ],
}


@pytest.mark.parametrize("name", SPECIAL)
def test_what_an_op_refuses(unchecked, name):
    op = next(getattr(module, name) for module in (ops, conv_basis, selection) if hasattr(module, name))
    for changes, message in SPECIAL[name]:
        with pytest.raises((TypeError, ValueError), match=message):
            op(**(ARGUMENTS | OTHERS)[name] | changes)
