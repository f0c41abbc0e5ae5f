"""What the laws of linear attention are checked on, for the ops and for the kernels behind them."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from hypothesis import strategies as st

from based_jax import ops
from tests.arrays import array, stream_at
from tests.ops import draw, oracles


class Case(NamedTuple):
    """One compiled program: sizes and the optional arguments that are present."""

    op: str
    sizes: tuple[int, int, int, int, int]  # B, N, H, K, V
    chunk: int
    decay: str = ""
    options: str = ""  # of "segments padded state"
    normalize: bool = True

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes))
        return "-".join([self.op, sizes, f"chunk{self.chunk}", self.decay, *self.options.split()]).strip("-")

    @property
    def features(self) -> int:
        width = self.sizes[3]
        return ops.symmetric_taylor_size(width) if self.op == "taylor" else width

    def phi(self, x: np.ndarray) -> np.ndarray:
        return oracles.symmetric_taylor_features(x) if self.op == "taylor" else x


class Inputs(NamedTuple):
    arrays: dict[str, np.ndarray]
    """differentiable: q, k, v, log_decay, and kv, k_sum of the initial state"""
    placement: dict[str, Any]
    """segment_ids, mask, stream"""
    weights: dict[str, np.ndarray]
    """of the outputs in the scalar whose gradient is taken"""
    state: oracles.Sums | None
    counts: np.ndarray

    def __repr__(self) -> str:  # what hypothesis reports: the drawn data without the random numbers
        return f"Inputs({self.placement}, counts={self.counts})"


@st.composite
def inputs(draw_, case: Case) -> Inputs:
    batch, length, heads, width, value_size = case.sizes
    rng = np.random.default_rng(draw_(draw.seeds))

    def tokens(count: int) -> list[np.ndarray]:
        q, k = rng.normal(size=(2, batch, count, heads, width))
        if case.op == "linear":  # already mapped: positive, or the normaliser may vanish
            q, k = abs(q) + 0.1, abs(k) + 0.1
        return [q, k, rng.normal(size=(batch, count, heads, value_size))]

    q, k, v = tokens(length)
    arrays = {"q": q, "k": k, "v": v}
    if case.decay == "gates":
        gates = rng.choice([0.0, -0.1, -1.0, -20.0], size=(batch, length, heads), p=[0.2, 0.4, 0.3, 0.1])
        arrays["log_decay"] = gates * rng.random(gates.shape)
    if case.decay == "fixed":
        arrays["log_decay"] = np.log1p(-(2.0 ** -(3 + np.arange(heads))))[None, None]

    placement: dict[str, Any] = {}
    state = None
    if "state" in case.options:  # of rows that have come differently far, some nowhere
        before_q, before_k, before_v = tokens(4)
        _, state = oracles.linear_attention(
            case.phi(before_q), case.phi(before_k), before_v,
            segment_ids=draw_(draw.segment_ids(batch, 4)), counts=draw_(draw.counts(batch, 4)),
        )  # fmt: skip
        arrays |= {"kv": state.kv, "k_sum": state.k}
        placement["stream"] = tuple(state[2:])
    if "segments" in case.options:
        placement["segment_ids"] = draw_(draw.segment_ids(batch, length))
    counts = np.full(batch, length, np.int32)
    if "padded" in case.options:
        counts = draw_(draw.counts(batch, length))
        placement["mask"] = draw.mask(counts, length)

    weights = {
        "y": rng.normal(size=v.shape),
        "kv": rng.normal(size=(batch, heads, case.features, value_size)),
        "k": rng.normal(size=(batch, heads, case.features)),
    }
    return Inputs(arrays, placement, weights, state, counts)


def call(arrays, placement, case: Case, implementation: str, chunk: int | None = None):
    """The op on these arrays, with its state."""
    state = None
    if "stream" in placement:
        state = ops.LinearAttentionState(arrays["kv"], arrays["k_sum"], stream_at(*placement["stream"]))
    arguments = {
        "log_decay": arrays.get("log_decay"),
        "initial_state": state,
        "return_state": True,
        "segment_ids": placement.get("segment_ids"),
        "mask": placement.get("mask"),
        "chunk_size": chunk or case.chunk,
        "implementation": implementation,
    }
    qkv = arrays["q"], arrays["k"], arrays["v"]
    if case.op == "taylor":
        return ops.taylor_attention(*qkv, **arguments)
    return ops.linear_attention(*qkv, normalize=case.normalize, **arguments)


@functools.partial(jax.jit, static_argnames=("case", "implementation"))
def values_and_gradients(arrays, placement, weights, *, case: Case, implementation: str):
    """y, the state, and the gradient of the weighted sum of both."""

    def loss(arrays):
        y, state = call(arrays, placement, case, implementation)
        total = (weights["y"] * y).sum() + (weights["kv"] * state.kv).sum() + (weights["k"] * state.k).sum()
        return total, (y, state)

    (_, outputs), gradients = jax.value_and_grad(loss, has_aux=True)(arrays)
    return outputs, gradients


values = jax.jit(call, static_argnames=("case", "implementation", "chunk"))


def cast(tree, dtype):
    return jax.tree.map(lambda x: array(x, dtype), tree)


def place(tree):
    return jax.tree.map(array, tree)


def oracle(case: Case, drawn: Inputs, arrays=None) -> tuple[np.ndarray, oracles.Sums]:
    arrays = drawn.arrays if arrays is None else arrays
    state = drawn.state
    if state is not None:
        state = state._replace(kv=arrays["kv"], k=arrays["k_sum"])
    return oracles.linear_attention(
        case.phi(arrays["q"]), case.phi(arrays["k"]), arrays["v"], log_decay=arrays.get("log_decay"),
        segment_ids=drawn.placement.get("segment_ids"), counts=drawn.counts, state=state,
        eps=1e-12 if case.normalize else None,
    )  # fmt: skip


def stream_of(state: ops.LinearAttentionState):
    return state.stream.length, state.stream.start, state.stream.segment


def parts(state: ops.LinearAttentionState):
    """A state as `oracle_parts` shows the oracle's."""
    return state.kv, state.k, stream_of(state)


def oracle_parts(state: oracles.Sums, with_segments: bool):
    segment = state.segment if with_segments else np.zeros_like(state.segment)
    return state.kv, state.k, (state.length, state.start, segment)


def in_pieces(case: Case, implementation: str, arrays, placement, lengths):
    """The op on consecutive pieces, the state handed on; starts from an empty state."""
    batch, _, heads, width, value_size = case.sizes
    make = ops.init_taylor_state if case.op == "taylor" else ops.init_linear_attention_state
    state = make(batch, heads, width, value_size, dtype=arrays["q"].dtype)
    outputs = []
    for begin, size in zip(np.cumsum([0, *lengths]), lengths, strict=False):
        piece = cut((arrays, placement), slice(begin, begin + size))
        y, state = values(
            piece[0] | {"kv": state.kv, "k_sum": state.k}, piece[1] | {"stream": stream_of(state)},
            case=case, implementation=implementation,
        )  # fmt: skip
        outputs.append(np.asarray(y))
    return np.concatenate(outputs, axis=1), state


def cut(tree, tokens: slice):
    """These tokens of every array; in NumPy, where a slice is not one more program."""
    return jax.tree.map(lambda x: np.asarray(x)[:, tokens], tree)
