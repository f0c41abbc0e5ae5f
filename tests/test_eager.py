"""Calls outside `jit`: the second one of the same shapes compiles nothing, nor does its gradient."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.tree_util import Partial

from based_jax import mixers, ops
from based_jax.ops import selection
from tests.arrays import array, normals
from tests.marks import slow_but
from tests.mixers.test_contract import CASES as MIXERS

BATCH, LENGTH, HEADS, WIDTH, CHANNELS = 2, 7, 2, 3, 4
GENERATOR = np.random.default_rng(0)


def drawn(*shape):
    return array(GENERATOR.normal(size=shape).astype(np.float32))


Q, K, V = (drawn(BATCH, LENGTH, HEADS, size) for size in (WIDTH, WIDTH, CHANNELS))
X = drawn(BATCH, LENGTH, CHANNELS)
BELOW_0 = array(-np.ones((BATCH, LENGTH, HEADS), np.float32))
TAPS = drawn(LENGTH, CHANNELS)
MODES = drawn(HEADS, 2, 2)
STEP = {"k": K[:, 0], "v": V[:, 0]}
IDS = array(np.repeat([[0, 1]], [4, 3], axis=1).repeat(BATCH, axis=0))
TOKENS = array(GENERATOR.integers(0, 3, (BATCH, LENGTH)))
WIDE, RATES = drawn(BATCH, LENGTH, 32), drawn(32, CHANNELS)  # the kernel's scan takes 32 channels
MAP = drawn(HEADS, WIDTH, 2)
STARTS = array(np.broadcast_to(np.array([0, 3]), (BATCH, HEADS, 2)))
POSITIONS, STREAM = ops.advance(None, BATCH, LENGTH)
CHUNKS = {"chunk_size": 3}

CALLS = {
    "advance": (lambda ids: ops.advance(None, BATCH, LENGTH, ids), IDS),
    "attention_of_some": (lambda q: selection.attention_of_some(q, K, V, TOKENS == 1, 5), Q),
    "conv_attention": (lambda q: ops.conv_attention(q, K, V, starts=(0, 1, 4), gradient="anchors"), Q),
    "conv_recover": (lambda q: ops.conv_basis.conv_recover(q, K, terms=2, width=1, threshold=0.1), Q),
    "conv_score_error": (lambda q: ops.conv_basis.conv_score_error(q, K, STARTS), Q),
    "cosformer_features": (lambda q: ops.cosformer_features(q, POSITIONS.positions, LENGTH), Q),
    "cross_entropy": (lambda x: ops.cross_entropy(x, TAPS[:3], TOKENS, X[..., 0]), X),
    "delta_rule": (lambda q: ops.delta_rule(q, K, V, BELOW_0, **CHUNKS), Q),
    "diagonal_scan": (lambda x: ops.diagonal_scan(x, Partial(_pair), Partial(jnp.multiply), **CHUNKS), X),
    "diagonal_ssm": (lambda v: ops.diagonal_ssm(v, -jnp.abs(MODES), MODES, segment_ids=IDS), V),
    "diagonal_ssm_kernel": (lambda a: ops.diagonal_ssm_kernel(-jnp.abs(a), MODES, LENGTH), MODES),
    "discretize_bilinear": (lambda a: ops.discretize_bilinear(a, MODES, MODES, jnp.ones(HEADS)), MODES),
    "gaussian_features": (lambda key: ops.gaussian_features(key, (4, 2)), jax.random.key(0)),
    "generalized_delta_rule": (lambda q: ops.generalized_delta_rule(q, K, V, K, K, **CHUNKS), Q),
    "highest": (lambda x: selection.highest(x, TOKENS, POSITIONS), X[..., 0]),
    "hyper_attention": (lambda q: ops.hyper_attention(q, (K, K), (V, V)), Q),
    "hyper_feature_attention": (lambda q: ops.hyper_feature_attention((q, Q), (K, K), V, **CHUNKS), Q),
    "iterative_pinv": (ops.nystrom.iterative_pinv, array(np.array([[0.7, 0.3], [0.2, 0.8]], np.float32))),
    "l2_norm": (ops.l2_norm, X),
    "landmark_attention": (lambda q: ops.landmark_attention(q, K, V, tokens_per_landmark=2), Q),
    "layer_norm": (lambda x: ops.layer_norm(x, jnp.ones(CHANNELS)), X),
    "linear_attention": (
        lambda q: ops.linear_attention(q, K, V, feature_map=ops.performer_map(TAPS[:, :WIDTH]), **CHUNKS),
        Q,
    ),
    "linear_hyper_attention": (
        lambda q: ops.linear_hyper_attention(
            q, (K, K), (V, V), feature_map=ops.hyper_taylor_map(3), normalize="sum", **CHUNKS
        ),
        Q,
    ),
    "linear_recurrence": (lambda q: ops.linear_recurrence(q, K, V, BELOW_0, **CHUNKS), Q),
    "linearized_attention": (lambda q: ops.linearized_attention(q, K, V, MAP, MAP, left=2), Q),
    "long_conv": (lambda x: ops.long_conv(x, TAPS, segment_ids=IDS), X),
    "merge_attention": (lambda v: ops.merge_attention((v, v[..., 0]), (V, V[..., 0])), V),
    "nystrom_attention": (lambda q: ops.nystrom_attention(q, K, V, num_landmarks=3), Q),
    "orthogonal_features": (lambda key: ops.orthogonal_features(key, (4, 2)), jax.random.key(0)),
    "repeated": (selection.repeated, TOKENS),
    "repeated_in": (
        lambda history: selection.repeated_in(history, TOKENS, POSITIONS, STREAM),
        jnp.zeros((BATCH, 9), int),
    ),
    "repeated_lags": (lambda history: selection.repeated_lags(history, history, POSITIONS), TOKENS),
    "rms_norm": (lambda x: ops.rms_norm(x, jnp.ones(CHANNELS)), X),
    "rotary": (lambda v: ops.rotary(v, POSITIONS.positions), V),
    "running_log_sum": (lambda x: selection.running_log_sum(x, jnp.zeros(BATCH), POSITIONS), X[..., 0]),
    "scatterbrain_attention": (lambda q: ops.scatterbrain_attention(q, K, V, Q[0, :2, 0], left=2), Q),
    "segment_lengths": (
        lambda start: selection.segment_lengths(POSITIONS._replace(start=start), BATCH),
        POSITIONS.start,
    ),
    "segment_softmax": (lambda x: selection.segment_softmax(x, POSITIONS), X[..., 0]),
    "segment_sum": (lambda x: selection.segment_sum(x, POSITIONS), X[..., 0]),
    "selective_scan": (
        lambda x: ops.selective_scan(x, jnp.exp(WIDE), -jnp.abs(RATES), X, X, **CHUNKS),
        WIDE,
    ),
    "shifted_sum": (lambda x: selection.shifted_sum(x, jnp.ones((BATCH, 2), int), X[:, :2, 0]), X),
    "short_conv": (lambda x: ops.short_conv(x, TAPS[:3], segment_ids=IDS), X),
    "short_conv_step": (
        lambda x: ops.short_conv_step(x[:, :2], TAPS[:3], ops.init_short_conv_state(BATCH, CHANNELS, 3)),
        X,
    ),
    "sink_attention": (lambda q: ops.sink_attention(q, K, V, left=2, sinks=1, segment_ids=IDS), Q),
    "softmax_attention": (lambda q: ops.softmax_attention(q, K, V, left=2, segment_ids=IDS), Q),
    "strongest_lags": (lambda x: selection.strongest_lags(x, 2), X),
    "symmetric_taylor_features": (ops.symmetric_taylor_features, X),
    "symmetric_to_full": (lambda x: ops.symmetric_to_full(x, 2), drawn(2, 6)),
    "taylor_attention": (lambda q: ops.taylor_attention(q, K, V, segment_ids=IDS, **CHUNKS), Q),
    "taylor_features": (ops.taylor_features, X),
    "taylor_step": (
        lambda q: ops.taylor_step(q, **STEP, state=ops.init_taylor_state(BATCH, HEADS, WIDTH, CHANNELS)),
        Q[:, 0],
    ),
    "token_shift": (ops.token_shift, X),
    "window_step": (
        lambda q: ops.window_step(q, **STEP, cache=ops.init_kv_cache(BATCH, 4, HEADS, WIDTH, CHANNELS)),
        Q[:, 0],
    ),
    "wkv": (lambda x: ops.wkv(x, X, -jnp.ones(CHANNELS), jnp.ones(CHANNELS), **CHUNKS), X),
    "zoology_scatterbrain": (lambda q: ops.zoology_scatterbrain(q, K, V, Q[0, :2, 0], left=2), Q),
}
"""Every op that takes arrays: a function of its first one, and arrays."""

ON_THE_HOST = {
    "FeatureMap",
    "all_poly_map",
    "conv_decompose",
    "conv_matrix",
    "conv_separation",
    "performer_map",
}
"""They take arrays, and make something of them with NumPy or none at all."""


def _pair(x):
    return x, x


@pytest.fixture(scope="module")
def compilations():
    """The programs compiled so far, in a list of one number."""
    count = [0]

    def listen(event, _seconds, **_):
        count[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    return count


def differentiated(function, *arrays):
    """The function, and its gradient where there is one; nothing that is compiled is its own."""
    if not jnp.issubdtype(jax.tree.leaves(arrays)[0].dtype, jnp.floating):
        return function(*arrays)
    y, pull = jax.vjp(function, *arrays)
    ones = [
        np.ones(x.shape, x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else np.zeros(x.shape, jax.dtypes.float0)
        for x in jax.tree.leaves(y)
    ]
    return function(*arrays), pull(jax.tree.unflatten(jax.tree.structure(y), ones))


def expect_one_compilation(compilations, function, *arrays):
    differentiated(function, *arrays)
    first = compilations[0]
    assert first, "nothing was counted"
    differentiated(function, *arrays)
    assert compilations[0] == first


def test_every_op_that_takes_arrays_is_here():
    annotated = {
        name
        for module in (ops, ops.conv_basis, ops.nystrom, selection)
        for name, op in vars(module).items()
        if name in dir(ops) or getattr(op, "__module__", "").startswith(module.__name__)
        if callable(op) and not (isinstance(op, type) or name.startswith("_"))
        if any(
            "Array" in str(p.annotation) or "TokenPositions" in str(p.annotation)
            for p in inspect.signature(op).parameters.values()
        )
    }
    assert annotated - ON_THE_HOST == set(CALLS)


@pytest.mark.parametrize("name", slow_but(["cross_entropy", "linear_attention", "long_conv"], CALLS))
def test_ops_compile_once(compilations, name):
    function, *arrays = CALLS[name]
    expect_one_compilation(compilations, function, *arrays)


CASES = MIXERS | {"input_conv": {}}


@pytest.mark.parametrize("case", slow_but(["linear_attention", "long_conv"], CASES, core=[]))
def test_mixers_compile_once(compilations, case):
    mixer = mixers.make(case.partition("-")[0], d_model=CHANNELS * 3, **CASES[case])
    x = drawn(BATCH, 13, mixer.d_model)
    tokens = {"tokens": array(np.zeros((BATCH, 13), int))} if mixer.wants_tokens else {}
    variables = normals(functools.partial(mixer.init, **tokens), x, dtype=jnp.float32)
    before = compilations[0]
    mixer.apply(variables, x, **tokens)
    assert compilations[0] <= before + 1, "more than one program"
    expect_one_compilation(compilations, lambda x: mixer.apply(variables, x, **tokens)[0], x)
    expect_one_compilation(compilations, lambda w: mixer.apply(w, x, **tokens)[0], variables)


MIXER = mixers.make("attention", d_model=CHANNELS)
PARAMETERS = normals(MIXER.init, X, dtype=jnp.float32)


@pytest.mark.release
def test_a_compiled_mixer_still_names_what_depends_on_values():
    _, state = MIXER.apply(PARAMETERS, X, MIXER.init_state(BATCH, 10))

    def loss(w):
        return MIXER.apply(w, X, state)[0].sum()

    message = "length = 14: expected at most max_length = 10 tokens"
    for call in (loss, jax.grad(loss), lambda w: MIXER.apply(w, X, state, mask=TOKENS < 3)):
        with pytest.raises(ValueError, match=message):
            call(PARAMETERS)
    MIXER.apply(PARAMETERS, X, state, mask=IDS == 2)  # masked tokens take no capacity


@pytest.mark.release
def test_who_watches_the_methods_of_a_mixer_sees_every_call():
    calls = []

    def watch(method, args, kwargs, context):
        calls.append((type(context.module).__name__, context.method_name))
        return method(*args, **kwargs)

    for _ in range(2):
        MIXER.apply(PARAMETERS, X)
        with nn.intercept_methods(watch):
            MIXER.apply(PARAMETERS, X)
    assert calls.count(("Attention", "__call__")) == 2
    _, captured = MIXER.apply(PARAMETERS, X, capture_intermediates=True)
    assert "intermediates" in captured


def test_mixers_of_others_run_as_they_are_written():
    values = []

    class Theirs(mixers.Mixer):
        def mix(self, x, state, context):
            values.append(float(x[0, 0, 0]))
            return x, state

    theirs = Theirs(CHANNELS)
    for x in (X, X + 1):
        theirs.apply({}, x)
    assert values == [X[0, 0, 0], X[0, 0, 0] + 1]


@pytest.mark.parametrize(
    "real", [[0, 1, 0, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0, 0]], ids=["after padding", "hole"]
)
def test_a_mask_of_two_runs_is_refused_or_gives_nan(real):
    mask = array(np.array([[1] * LENGTH, real], bool))
    message = "rows of mask with padding between real tokens = 1: expected 0"
    for call in (
        lambda: MIXER.apply(PARAMETERS, X, mask=mask),
        lambda: ops.short_conv(X, TAPS[:3], mask=mask),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    y, _ = jax.jit(MIXER.apply)(PARAMETERS, X, mask=mask)
    assert np.isnan(y[1][mask[1]]).all()
    assert np.isfinite(y[0]).all()


def test_wide_integers_are_not_cut():
    ids = np.array([[0, 2**32, 0, 1, 1, 1, 1]] * BATCH)
    for call in (
        lambda: MIXER.apply(PARAMETERS, X, segment_ids=ids),
        lambda: ops.short_conv(X, TAPS[:3], segment_ids=ids),
    ):
        with pytest.raises(ValueError, match="an array of int64 = 4294967296: expected from -2147483648"):
            call()
    with (
        jax.enable_x64(True),
        pytest.raises(ValueError, match="segment_ids = 4294967296: expected a 32-bit integer"),
    ):
        ops.advance(None, BATCH, LENGTH, jnp.asarray(ids))


def test_a_callers_settings_do_not_reach_inside():
    taps, mask = TAPS[:3], jnp.arange(LENGTH) >= jnp.arange(BATCH)[:, None]
    with jax.numpy_rank_promotion("raise"), jax.transfer_guard("disallow"):
        MIXER.apply(PARAMETERS, X, segment_ids=IDS)
        jax.jit(jax.grad(lambda w: MIXER.apply(w, X)[0].sum()))(PARAMETERS)
        ops.short_conv(X, taps, segment_ids=IDS)
        ops.short_conv(X, taps, mask=mask)
