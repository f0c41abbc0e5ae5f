"""What the laws of linear attention are checked on, for the ops and for the kernels that implement them."""

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
    chunk: int | None
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


def tokens(rng: np.random.Generator, case: Case, count: int) -> dict[str, np.ndarray]:
    """q, k and v of so many tokens."""
    batch, _, heads, width, value_size = case.sizes
    q, k = rng.normal(size=(2, batch, count, heads, width))
    if case.op == "linear":  # already mapped: positive, or the normaliser may vanish
        q, k = abs(q) + 0.1, abs(k) + 0.1
    return {"q": q, "k": k, "v": rng.normal(size=(batch, count, heads, value_size))}


def decays(rng: np.random.Generator, case: Case) -> dict[str, np.ndarray]:
    """log_decay, if the case has one."""
    batch, length, heads = case.sizes[:3]
    if case.decay == "gates":
        gates = rng.choice([0.0, -0.1, -1.0, -20.0], size=(batch, length, heads), p=[0.2, 0.4, 0.3, 0.1])
        return {"log_decay": gates * rng.random(gates.shape)}
    if case.decay == "fixed":
        return {"log_decay": np.log1p(-(2.0 ** -(3 + np.arange(heads))))[None, None]}
    return {}


@st.composite
def inputs(draw_, case: Case) -> Inputs:
    batch, length, heads, _, value_size = case.sizes
    rng = np.random.default_rng(draw_(draw.seeds))
    arrays = tokens(rng, case, length) | decays(rng, case)

    placement: dict[str, Any] = {}
    state = None
    if "state" in case.options:  # of rows that have come differently far, some nowhere
        ids, lengths = draw_(draw.segment_ids(batch, 4)), draw_(draw.counts(batch, 4))
        _, state = recurrence(case, tokens(rng, case, 4), ids, lengths)
        arrays |= {"kv": state.kv, "k_sum": state.k}
        placement["stream"] = tuple(state[2:])
    if "segments" in case.options:
        placement["segment_ids"] = draw_(draw.segment_ids(batch, length))
    counts = np.full(batch, length, np.int32)
    if "padded" in case.options:
        counts = draw_(draw.counts(batch, length))
        placement["mask"] = draw.mask(counts, length)

    weights = {
        "y": rng.normal(size=arrays["v"].shape),
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


def recurrence(case: Case, arrays, segment_ids=None, counts=None, state=None):
    """y and the sums, token by token in NumPy."""
    return oracles.linear_attention(
        case.phi(arrays["q"]),
        case.phi(arrays["k"]),
        arrays["v"],
        log_decay=arrays.get("log_decay"),
        segment_ids=segment_ids,
        counts=counts,
        state=state,
        eps=1e-12 if case.normalize else None,
    )


def oracle(case: Case, drawn: Inputs) -> tuple[np.ndarray, oracles.Sums]:
    return recurrence(case, drawn.arrays, drawn.placement.get("segment_ids"), drawn.counts, drawn.state)


def parts(state: ops.LinearAttentionState):
    """A state as `oracle_parts` shows the oracle's."""
    return state.kv, state.k, (state.stream.length, state.stream.start, state.stream.segment)


def oracle_parts(state: oracles.Sums, with_segments: bool):
    segment = state.segment if with_segments else np.zeros_like(state.segment)
    return state.kv, state.k, (state.length, state.start, segment)
