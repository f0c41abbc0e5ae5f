"""Every registered mixer obeys the contract: the laws, gradients, state sizes, errors."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax import mixers
from based_jax.mixers.module import find_stream
from based_jax.testing import laws
from tests.marks import slow_but

WIDTH = 12
CASES = {
    "attention": {"num_heads": 3, "rotary_fraction": 0.5, "use_gate": True},
    "attention-wide": {"num_heads": 2, "head_dim": 5, "scale": 0.3, "rotary_fraction": 0.4, "dropout": 0.5},
    "attention-grouped": {"num_heads": 4, "num_kv_heads": 2, "qkv_bias": True, "out_bias": True},
    "base_conv": {"use_act": True},
    "base_conv-long": {"kernel_size": -1, "l_max": 20, "sine_frequency": 14.0, "filter_order": 4},
    "bigbird": {"num_heads": 2, "block_size": 1, "l_max": 13, "rotary_fraction": 0.5},
    "blocked_window": {"num_heads": 2, "width": 5},
    "conv_basis": {"num_heads": 2, "rotary_fraction": 0.5},
    "conv_basis-starts": {"num_heads": 2, "num_kv_heads": 1, "starts": (0, 2, 3, 7)},
    "delta_net": {"qk_norm": "sum", "qk_activation": "elu", "use_gate": True, "allow_neg_eigval": True},
    "gated_conv": {},
    "gated_conv-long": {"kernel_size": 5, "conv_bias": True, "bias": False, "expand": 2},
    "gated_conv-gates": {"expand": 2, "gate_input": True, "kernel_size": 2},
    "gated_delta_net": {"num_heads": 3, "num_v_heads": 6, "allow_neg_eigval": True},
    "gated_delta_net-plain": {"num_heads": 2, "kernel_size": None},
    "gla-plain": {"num_heads": 3},
    "gla": {"num_heads": 3, "num_kv_heads": 1, "gate_low_rank_dim": 2, "kernel_size": 3},
    "h3": {"d_state": 6, "head_dim": 2},
    "h3-ema": {"d_state": 5, "head_dim": 2, "kernel": "ema", "l_max": 9},
    "hyena": {"l_max": 26, "filter_order": 6},
    "hyper_attention": {"num_heads": 2},
    "hyper_attention-window": {"num_heads": 1, "shared": False, "left": 3},
    "hyper_feature_attention": {"orders": (2, 1, 2), "value_product": True},
    "linear_attention": {"num_heads": 2, "feature_dim": 3},
    "linear_attention-decay": {"num_heads": 2, "feature_dim": 3, "decay": "gated"},
    "linear_attention-cosformer": {"feature_dim": 4, "feature_map": "cosformer", "max_length": 48},
    "linear_attention-elu": {
        "num_heads": 3,
        "head_dim": 5,
        "feature_dim": 2,
        "feature_map": "pos_elu",
        "feature_scale": 1.5,
        "rotary_fraction": 1.0,
    },
    "linear_hyper_attention": {"num_heads": 3, "feature_dim": 2},
    "linear_hyper_feature_attention": {"feature_dim": 3, "feature_map": "pos_elu", "norm": "sum"},
    "linearized_attention": {"num_heads": 2, "num_kv_heads": 1, "left": 2, "feature_dim": 3},
    "long_conv": {"l_max": 11},
    "liquid_s4": {"d_state": 4},
    "mamba": {"d_state": 3, "map_norm": "learned"},
    "mamba2": {"d_state": 3, "head_dim": 6, "num_groups": 2, "ssm_channels": 12, "dt_least": 0.01},
    "mlp": {"hidden": 5, "activation": "squared_relu", "bias": True},
    "nystrom": {"num_heads": 2, "num_landmarks": 4, "l_max": 13},
    "retnet": {"num_heads": 2},
    "retnet-shared": {"num_heads": 3, "num_kv_heads": 1, "norm": "rms", "rotary_interleaved": False},
    "rwkv4": {"layer": 1, "num_layers": 3},
    "rwkv5": {"head_size": 4, "layer": 1, "num_layers": 3},
    "rwkv7": {"head_dim": 6, "decay_rank": 2, "gate_rank": 3, "rate_rank": 2},
    "rwkv_channel_mix": {"expand": 2},
    "scatterbrain": {"num_heads": 2, "left": 2, "feature_dim": 6},
    "selected_attention": {"qkv_bias": False},  # with these numbers every token of the laws is selected once
    "selective_lookups": {"num_heads": 2, "rotary_fraction": 0.5},
    "short_conv": {"bias": True},
    "sigmoid_lookups": {"qkv_bias": False},
    "sliding_window": {"num_heads": 2, "left": 5},
    "sliding_window-wide": {
        **{"num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "scale": 1.0, "left": 4},
        **{"qk_norm": True, "rotary_frequencies": (1.0, 0.5, 0.1, 0.02), "use_gate": True, "qkv_bias": True},
    },
    "sliding_window-sinks": {"num_heads": 2, "num_kv_heads": 1, "left": 2, "sinks": 2, "qk_norm": "all"},
    "sliding_window-self": {"num_heads": 1, "left": 0, "rotary_interleaved": True},
    "sma": {"num_heads": 2, "qkv_bias": False},
}

BY_FFT = {"base_conv-long", "h3", "h3-ema", "hyena", "long_conv"}
"""a transform mixes all tokens, so that these are causal up to rounding"""


KINDS = [
    "attention",
    "bigbird",
    "blocked_window",
    "gated_conv",
    "gated_delta_net",
    "h3",
    "hyper_attention",
    "linear_attention",
    "mamba2",
    "rwkv5",
    "sigmoid_lookups",
]
"""One of each kind of state. Every case obeys the laws; what takes further programs, these."""
DIFFERENTIATED = ["attention", "blocked_window", "gated_conv", "gated_delta_net", "hyper_attention", "mamba2"]
"""Those whose gradients are taken: compiling them takes seconds. tests/parity compares the others' with the
authors', tests/ops those of every op with float64."""
PROPER = [case for case in CASES if "-" not in case]
"""The other cases are other numbers for the same code, tested in tests/ops."""
LATER = {
    *("conv_basis", "delta_net", "gla", "hyena", "linear_hyper_attention", "retnet", "scatterbrain"),
    *("selective_lookups", "sma"),
}
"""Those whose op and state another one has: in the slow run."""
CHOSEN = [case for case in PROPER if case not in LATER]


@functools.cache
def runner(case: str) -> laws.Runner:
    return laws.Runner(mixers.make(case.partition("-")[0], d_model=WIDTH, **CASES[case]))


@pytest.fixture(params=slow_but(CHOSEN, CASES, core=KINDS))
def run(request: pytest.FixtureRequest) -> laws.Runner:
    return runner(request.param)


def test_every_mixer_has_a_case():
    with_tokens = {"input_conv"}  # its laws need token ids: tests/mixers/test_input_conv.py
    assert {case.partition("-")[0] for case in CASES} == set(mixers.names()) - with_tokens


PACKED = np.repeat([[3, 1, 3, 0]], [4, 3, 1, 5], axis=1).repeat(laws.ROWS, axis=0)
"""segment ids of rows with four documents, the first and the third with the same id"""


def drawn(seed, length=laws.LENGTH):
    return laws.inputs(laws.ROWS, length, WIDTH, seed)


def test_token_by_token(run):
    """What the other laws take for the truth."""
    x = drawn(0)
    laws.assert_close(laws.stepped(run, x)[0], laws.packed(run, x), laws.TOLERANCE)


def test_split_law(run):
    for sizes in ([1, 6, 6], [6, 6, 1]):
        laws.split_law(run, drawn(1), sizes)


def test_split_law_inside_packed_documents(run):
    """Cuts inside a document, at its border, and just after it; the second row ends in its last one."""
    mask = np.arange(laws.LENGTH) < np.array([[laws.LENGTH], [11]])
    for sizes in ([6, 7], [7, 6], [8, 5], [1] * 13):
        laws.split_law(run, drawn(2), sizes, mask=mask, segment_ids=PACKED)


def test_a_continued_row_stays_in_its_segment_without_ids(run):
    x, ids = drawn(3), np.array([[0] * 3 + [1] * 10] * laws.ROWS)
    whole = laws.packed(run, x, segment_ids=ids)
    first, state = laws.in_chunks(run, x, [6], segment_ids=ids)
    second, _ = laws.stepped(run, x[:, 6:], state)
    laws.assert_close(np.concatenate([first, second], axis=1), whole, laws.TOLERANCE)


@pytest.mark.parametrize("case", slow_but(["mamba2"], KINDS, core=[]))
def test_calls_without_masks_and_ids_and_of_other_lengths(case):
    """Arrays that are cut, and arguments that are absent, take other ways through the code."""
    run, x = runner(case), drawn(3)
    laws.assert_close(run(x)[0], laws.packed(run, x), laws.TOLERANCE)
    first, state = run(x[:, :6], run.fresh(laws.ROWS))
    second, state = run(x[:, 6:12], state)
    third, _ = run(x[:, 12:], state)
    laws.assert_close(np.concatenate([first, second, third], axis=1), laws.packed(run, x), laws.TOLERANCE)
    tokens, _ = laws.stepped(run, x, segment_ids=PACKED)
    laws.assert_close(tokens, laws.packed(run, x, segment_ids=PACKED), laws.TOLERANCE)


def test_segment_law(run):
    for lengths in ([1, 12], [6, 1, 6], [13], [3, 3, 3, 4]):
        laws.segment_law(run, drawn(4), lengths)


def test_padding_law(run):
    for lengths, before in (([13, 1], [0, 0]), ([0, 7], [0, 6]), ([8, 3], [5, 6])):
        laws.padding_law(run, drawn(5), lengths, drawn(6), before)


def test_causality(run, request):
    is_exact = request.node.callspec.params["run"] not in BY_FFT
    laws.causality(run, drawn(7), 0, 1, 6, 12, tolerance=0.0 if is_exact else laws.TOLERANCE)


def test_containment(run):
    """The document breaks at its third token: cut before that, after it, and at its end."""
    for cut in (5, 7, 9):
        laws.containment(run, drawn(9), cut)


@given(st.sampled_from(KINDS), st.integers(1, 12), st.integers(0, 13), st.integers(0, 2**31))
def test_split_law_anywhere(case, cut, length, seed):
    """Random cut, random padding of one row, both at once."""
    mask = np.arange(laws.LENGTH) < np.array([laws.LENGTH, length])[:, None]
    laws.split_law(runner(case), drawn(seed), [cut, laws.LENGTH - cut], mask=mask)


@pytest.mark.parametrize("case", slow_but(["gated_conv"], DIFFERENTIATED))
def test_gradients_flow_through_the_state(case):
    """The gradient of a row in two calls does not depend on the cut, and padding has none."""
    run = runner(case)
    x, length, index = laws.inputs(1, 9, WIDTH, 8), 7, np.arange(9)

    @functools.partial(jax.jit, compiler_options=laws.QUICKLY)
    @functools.partial(jax.grad, argnums=(0, 1))
    def gradients(variables, x, cut):
        masks = index < cut, index < length - cut
        first, state = run.mixer.apply(variables, x, run.fresh(1), mask=masks[0][None])
        rest, _ = run.mixer.apply(
            variables, jnp.take(x, (index + cut) % 9, axis=1), state, mask=masks[1][None]
        )
        return sum(
            jnp.sum(jnp.where(mask[:, None], y, 0) ** 2) for y, mask in zip((first, rest), masks, strict=True)
        )

    expected = gradients(run.variables, x, length)  # the second call has padding only
    for cut in (1, 6):
        # float32, gradients accumulate over the length
        laws.assert_close(gradients(run.variables, x, cut), expected, 1e-5)
    of_x = np.asarray(expected[1])
    assert not np.any(of_x[:, length:])
    assert np.any(of_x[:, :length])


@pytest.mark.parametrize("case", slow_but(["attention", "gated_conv", "linear_attention", "mamba2"], KINDS))
def test_bfloat16_is_close(case):
    """bfloat16 keeps 8 bits: 2 % of the largest output."""
    run, x = runner(case), drawn(10)
    low = run.mixer.clone(dtype=jnp.bfloat16)
    y, _ = jax.jit(low.apply, compiler_options=laws.QUICKLY)(run.variables, x)
    assert y.dtype == jnp.bfloat16
    laws.assert_close(np.asarray(y, np.float32), laws.packed(run, x), 0.03)


def test_info_agrees_with_the_mixer():
    for case, options in CASES.items():
        name = case.partition("-")[0]
        info, mixer = mixers.info(name), mixers.make(name, d_model=WIDTH, **options)
        assert all((info.causal, info.stateful, info.packing, info.summary)), case
        state = jax.eval_shape(lambda: mixer.init_state(3, laws.MAX_LENGTH))  # noqa: B023
        assert find_stream(state).length.shape == (3,), case  # models with learned positions read it
        assert set(info.options) >= {"dtype"}, case
        assert info.state_size(64, 100) == mixers.make(name, d_model=64).state_size(100), case


@pytest.mark.release
def test_dtypes_in_float64(x64):
    """Those of states never change, so that `lax.scan` can carry them; parameters are float32."""
    for case in PROPER:
        mixer = mixers.make(case.partition("-")[0], d_model=WIDTH, dtype=jnp.float64, **CASES[case])
        x = jax.ShapeDtypeStruct((2, 3, WIDTH), jnp.float64)
        state = jax.eval_shape(lambda: mixer.init_state(2, laws.MAX_LENGTH))  # noqa: B023
        (_, after), variables = jax.eval_shape(mixer.init_with_output, jax.random.key(0), x, state)
        assert after == state, case
        narrow = jax.eval_shape(lambda: mixer.init_state(2, laws.MAX_LENGTH, dtype=jnp.float32))  # noqa: B023
        assert jax.eval_shape(mixer.apply, variables, x, narrow)[1] == narrow, case
        assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}, case


def test_d_model_alone_is_enough():
    for name in mixers.names():
        mixer = mixers.make(name, d_model=1)
        x = jax.ShapeDtypeStruct((1, 3, 1), jnp.float32)
        (y, state), _ = jax.eval_shape(mixer.init_with_output, jax.random.key(0), x)
        assert y.shape == (1, 3, 1), name
        assert state is None, name


def test_state_sizes_are_the_papers():
    for name, options, length, expected in [
        # Based, appendix E.2, with its grids' numbers
        ("linear_attention", {"d_model": 64, "num_heads": 1, "feature_dim": 16}, 1024, 9945),
        ("linear_attention", {"d_model": 128, "num_heads": 1, "feature_dim": 24}, 1024, 41925),
        ("linear_attention", {"d_model": 1024, "num_heads": 16, "feature_dim": 16}, 2048, 159120),
        ("attention", {"d_model": 64}, 1024, 2 * 64 * 1024),
        ("sliding_window", {"d_model": 128, "left": 63}, 1024, 2 * 128 * 64),
        ("sliding_window", {"d_model": 128, "left": 63}, 16, 2 * 128 * 16),
        ("gated_conv", {"d_model": 1024}, 2048, 2048 * 3),
        ("mamba", {"d_model": 128, "d_state": 24}, 1024, 2 * 128 * 24),
        ("delta_net", {"d_model": 64}, 1024, 2 * 32 * 32),
        ("gated_delta_net", {"d_model": 64}, 1024, 2 * 32 * 64),
        ("rwkv7", {"d_model": 256}, 1024, 64 * 256),
        # Zoology, sections 3 and 5.2
        ("gated_delta_net", {"d_model": 64, "num_v_heads": 4}, 1024, 4 * 32 * 32),
        ("gla", {"d_model": 64, "num_heads": 2}, 1024, 2 * 16 * 32),
        ("mamba2", {"d_model": 64, "d_state": 16}, 1024, 2 * 64 * 16),
        ("retnet", {"d_model": 512}, 1024, 2 * 256 * 512),
        ("rwkv5", {"d_model": 128}, 1024, 64 * 128),
    ]:
        assert mixers.info(name).state_size(length=length, **options) == expected


def test_a_fresh_state_can_be_donated():
    """No array stands in it twice: XLA refuses to donate one buffer as two arguments."""
    for case, options in {**CASES, **{name: {} for name in mixers.names()}}.items():
        state = mixers.make(case.partition("-")[0], d_model=WIDTH, **options).init_state(2, 16)
        pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state) if leaf.size]
        assert len(set(pointers)) == len(pointers), case


ALLOCATED = [
    *CASES.items(),
    ("conv_basis", {"starts": (0, 4, 30)}),
    ("hyper_attention", {"shared": False, "order": 4, "left": 5}),
    ("linear_hyper_attention", {"feature_map": "identity", "normalize": "none", "order": 4}),
]
OTHERWISE_COUNTED = {
    *("base_conv", "bigbird", "delta_net", "gated_conv", "gated_delta_net", "gla", "h3", "hyena", "mamba"),
    *(
        "linearized_attention",
        "mamba2",
        "nystrom",
        "rwkv5",
        "rwkv7",
        "scatterbrain",
        "selective_lookups",
        "short_conv",
    ),
}
"""Papers count an input for each tap of a convolution, or none of them, and no sums of landmarks."""


def test_state_sizes_are_what_is_allocated():
    for case, options in ALLOCATED:
        name = case.partition("-")[0]
        mixer = mixers.make(name, d_model=WIDTH, **options)
        state = jax.eval_shape(lambda m=mixer: m.init_state(1, 9))
        leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        floats = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // 4
        assert floats == mixer.state_size(9) or name in OTHERWISE_COUNTED, case


def test_every_option_is_explained():
    for name in mixers.names():
        options, module = mixers.options(name), mixers.make(name, d_model=16)
        shown = type(module).__doc__ or ""  # by help()
        assert set(options) == set(mixers.info(name).options)
        for option, (default, meaning) in options.items():
            assert meaning, option
            assert getattr(module, option) == default
            assert re.search(rf"^ +(\w+, )*{option}\b.*: ", shown, flags=re.M)


def test_bad_input_is_named(unchecked):
    for call, message in [
        (lambda: mixers.make("no_such", d_model=8), "mixer = 'no_such': expected one of 'attention'"),
        (lambda: mixers.make("attention", d_model=0), "d_model = 0: expected at least 1"),
        (lambda: mixers.make("attention", d_model=8, heads=2), "option of attention = 'heads':"),
        (lambda: mixers.make("attention", d_model=8, heads=2), r"; did you mean 'num_heads'\?$"),
        (
            lambda: mixers.make("atention", d_model=8),
            r"', or install the package .*; did you mean 'attention'\?$",
        ),
        (lambda: mixers.info("no_such"), "mixer = 'no_such'"),
        (lambda: mixers.options("no_such"), "mixer = 'no_such'"),
        (lambda: mixers.make("attention", d_model=8).init_state(1), "max_length = None"),
        (lambda: mixers.make("gated_conv", d_model=8).init_state(None), "batch_size = None: expected an int"),
        (lambda: mixers.make("gated_conv", d_model=8).init_state(1, 1.5), "max_length = 1.5: expected an"),
        (
            lambda: mixers.make("gated_conv", d_model=8).init_state(1, dtype="int32"),
            "dtype = 'int32': expected a floating dtype",
        ),
        (
            lambda: mixers.make("attention", d_model=10, num_heads=3).init_state(1, 4),
            "d_model = 10: expected a mul",
        ),
        (lambda: mixers.make("sliding_window", d_model=8, left=-1).init_state(1), "left = -1"),
        (
            lambda: mixers.make("attention", d_model=8, num_heads=4, num_kv_heads=3).init_state(1, 4),
            "num_heads = 4: expected a multiple of num_kv_heads = 3",
        ),
        (
            lambda: mixers.make("linear_attention", d_model=8, decay="some").init(jax.random.key(0), X),
            "decay = 'some': expected one of",
        ),
        (lambda: mixers.make("gated_conv", d_model=8).init(jax.random.key(0), X[0]), r"x has shape \(3, 8\)"),
        (lambda: mixers.make("gated_conv", d_model=9).init(jax.random.key(0), X), r"expected \(B, N, 9\)"),
        (lambda: mixers.make("gated_conv", d_model=8).init(jax.random.key(0), X[:, :0]), "no empty axis"),
        (
            lambda: mixers.make("gated_conv", d_model=8).init(jax.random.key(0), X.astype(int)),
            "x has dtype int32: expected a floating dtype",
        ),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            call()


X = jnp.zeros((1, 3, 8))


def test_a_text_longer_than_the_state_is_an_error():
    run = runner("attention")
    state = run.mixer.init_state(1, 4)
    x = laws.inputs(1, 3, WIDTH, 11)
    _, state = run(x, state)
    with pytest.raises(ValueError, match="at most max_length = 4 tokens"):
        jax.eval_shape(lambda: run.mixer.apply(run.variables, x, state))  # the state is known
    y, _ = run(x, state)  # under jit: NaN instead of a wrong number
    assert np.all(np.isnan(y))
