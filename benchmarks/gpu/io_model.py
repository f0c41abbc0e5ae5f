"""Count what the kernels of Taylor attention must move and compute, as formulas: the bound of every timing.

Bytes are compulsory traffic with the device's memory: each operand once per kernel, each result once. FLOPs
are those of the matmuls that are issued, with the padding of keys and features for the tensor cores.
Letters as in `based_jax.typing`; C tokens of a chunk, L tokens of a block, R rows of the kernels' state.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from pallas_kernels.taylor_attention.layout import Layout, symmetric_size

FLOAT32 = 4
"""Bytes of a running sum, a normaliser or its gradient, whatever the inputs' dtype."""


class Rates(NamedTuple):
    """Datasheet rates of one GPU: upper bounds for every program."""

    kind: str
    """its name as CUDA reports it, or the beginning of that"""
    bandwidth: float
    """memory bandwidth, bytes/s"""
    products: float
    """dense bfloat16 FLOP/s of matrix products with float32 sums"""
    wide: float
    """dense FLOP/s of products of float32 numbers, truncated to tf32"""


GPUS = {
    "H200": Rates("NVIDIA H200", 4.8e12, 989e12, 494e12),
    "H100": Rates("NVIDIA H100", 3.35e12, 989e12, 494e12),
    "A100": Rates("NVIDIA A100", 2.039e12, 312e12, 156e12),
    "RTX 4090": Rates("NVIDIA GeForce RTX 4090", 1.008e12, 165e12, 83e12),
    "B200": Rates("NVIDIA B200", 8e12, 2250e12, 1125e12),
}
"""SXM modules, and 80 GB of the A100."""


@dataclass(frozen=True)
class Cost:
    """Bytes and FLOPs of one call."""

    bytes: float
    flops: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes + other.bytes, self.flops + other.flops)

    def seconds(self, bandwidth: float, rate: float) -> float:
        """Return the least time at `bandwidth` bytes/s and `rate` FLOP/s: memory and tensor cores overlap."""
        return max(self.bytes / bandwidth, self.flops / rate)


@dataclass(frozen=True)
class Sizes:
    """One call of Taylor attention."""

    batch: int
    length: int
    heads: int
    key_size: int = 16
    value_size: int = 64
    itemsize: int = 2
    """bytes per number of q, k, v, y"""
    block: int | None = None
    """L; None is one block, the serial walk"""
    chunk: int = 64
    """C"""
    value_tile: int = 64
    """value channels per program; features are built once per tile"""

    @property
    def tokens(self) -> int:
        """Number of pairs of a token and a head."""
        return self.batch * self.length * self.heads

    @property
    def blocks(self) -> int:
        """Number of blocks per row and head."""
        return 1 if self.block is None else math.ceil(self.length / self.block)

    @property
    def layout(self) -> Layout:
        """The rows of the state, R, zero rows included; their tiles do not matter."""
        return Layout(self.key_size, 1)

    @property
    def state_bytes(self) -> int:
        """Bytes per row and head: sums phi(k) v^T, moments of the keys and their count, float32."""
        moments = (self.layout.padded_key_size + 1) * self.layout.last
        return FLOAT32 * (self.layout.size * self.value_size + moments)

    def states(self, count: int) -> int:
        """Return the bytes of `count` states per row and head."""
        return self.batch * self.heads * count * self.state_bytes


class Kernel(NamedTuple):
    """What a kernel of Taylor attention reads, writes and multiplies, per token and head."""

    keys: int
    """arrays like k, in and out"""
    values: int
    """arrays like v, in and out"""
    numbers: int
    """float32 numbers: normalisers and their gradients"""
    features: int
    """builds of one side's features or of their gradient, two products with constant matrices each"""
    sums: int
    """products with the state and the moments"""
    key_pairs: int = 0
    """products between the tokens of a chunk that contract or make channels of keys; both triangles"""
    value_pairs: int = 0
    """the same of channels of values"""


KERNELS = {
    "key_sums": Kernel(1, 1, 0, 1, 1),  # k, v in, a state out per block but the last
    "outputs": Kernel(2, 2, 1, 2, 2, 1, 1),  # q, k, v, blocks' states in, y and reciprocal normalisers out
    "query_sums": Kernel(1, 1, 2, 1, 1),  # q, dy, two numbers in, a sum out per block but the first
    "dq": Kernel(3, 2, 2, 3, 2, 2, 1),  # q, k, v, dy, two numbers, states of the forward pass in, dq out
    "dk": Kernel(3, 2, 2, 3, 2, 2, 1),  # the same with the sums over later queries, dk out
    "dv": Kernel(2, 2, 2, 2, 2, 1, 1),  # q, k, dy, two numbers and these sums in, dv out
}
"""The kernels of both passes; with one block `outputs` alone is the forward pass."""


def kernel(name: str, sizes: Sizes) -> Cost:
    """Return the cost of one of `KERNELS`."""
    work, rows, key_size = KERNELS[name], sizes.layout.size, sizes.layout.padded_key_size
    size = sizes.itemsize * (work.keys * sizes.key_size + work.values * sizes.value_size)
    states = sizes.blocks - 1 if name.endswith("sums") else sizes.blocks * (sizes.blocks > 1)
    features = work.features * 4 * key_size * rows
    sums = work.sums * 2 * (rows * sizes.value_tile + key_size * sizes.layout.last)
    pairs = 2 * sizes.chunk * (work.key_pairs * key_size + work.value_pairs * sizes.value_tile)
    tiles = math.ceil(sizes.value_size / sizes.value_tile)
    moved = sizes.tokens * (size + FLOAT32 * work.numbers) + sizes.states(states)
    return Cost(moved, sizes.tokens * tiles * (features + sums + pairs))


def scan(sizes: Sizes) -> Cost:
    """Pass 2: the blocks' states in, the initial state of each block out."""
    return Cost(0 if sizes.blocks == 1 else sizes.states(2 * sizes.blocks - 1), 0)


def normaliser_gradient(sizes: Sizes) -> Cost:
    """dd = -(dy . y) / normaliser, by the compiler: dy, y and a number in, a number out."""
    size = 2 * sizes.itemsize * sizes.value_size + 2 * FLOAT32
    return Cost(sizes.tokens * size, sizes.tokens * 2 * sizes.value_size)


def forward(sizes: Sizes) -> Cost:
    """The kernels of one call."""
    before = Cost(0, 0) if sizes.blocks == 1 else kernel("key_sums", sizes) + scan(sizes)
    return before + kernel("outputs", sizes)


def backward(sizes: Sizes) -> Cost:
    """The kernels of the gradients of q, k and v; the blocks' states are recomputed."""
    walks = normaliser_gradient(sizes) + kernel("dq", sizes) + kernel("dk", sizes) + kernel("dv", sizes)
    if sizes.blocks == 1:
        return walks
    return kernel("key_sums", sizes) + scan(sizes) + kernel("query_sums", sizes) + scan(sizes) + walks


def taylor_step(
    batch: int,
    heads: int,
    key_size: int = 16,
    value_size: int = 64,
    itemsize: int = 2,
    state_itemsize: int = 4,
) -> Cost:
    """One token: the state in and out once, q, k, v in, y out; vector arithmetic."""
    features = symmetric_size(key_size)
    state = 2 * features * (value_size + 1) * state_itemsize
    tokens = itemsize * (2 * key_size + 2 * value_size)
    return Cost(batch * heads * (state + tokens), batch * heads * 4 * features * (value_size + 1))


def window_step(
    batch: int, heads: int, window: int = 64, size: int = 64, kv_heads: int | None = None, itemsize: int = 2
) -> Cost:
    """One token: the other slots in, new k and v in and written, q in and y out; K = V = `size`."""
    kv_heads = heads if kv_heads is None else kv_heads
    numbers = 2 * size * (window - 1 + 2) + 2 * size * heads // kv_heads
    return Cost(batch * kv_heads * itemsize * numbers, batch * heads * 4 * window * size)


def row_products(length: int, columns: int, results: int, itemsize: int = 2) -> Cost:
    """One row of `length` numbers times matrices of `columns` in all; both are read, results written."""
    return Cost(itemsize * (length * columns + length + results), 2 * length * columns)


def conv_row_product(length: int, channels: int, taps: int, itemsize: int = 2) -> Cost:
    """The same of two halves, and a step of `channels` convolutions: taps in, history in and out."""
    products = row_products(length, 2 * channels, channels, itemsize)
    return products + Cost(itemsize * channels * (taps + 2 * (taps - 1)), 0)


@dataclass(frozen=True)
class WindowSizes:
    """One call of window attention."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    left: int
    """number of past keys that a query sees"""
    key_size: int = 64
    value_size: int = 64
    itemsize: int = 2
    queries: int = 64
    """queries per block"""
    keys: int = 32
    """keys per block"""


WINDOW = {
    "outputs": (2, 2, 1, 2),  # q, k, v in, y and log-sums out
    "dq": (4, 2, 2, 3),  # q, k, v, y, dy and log-sums in, dq and dy . y out
    "dkv": (2, 4, 2, 4),  # q, k, v, dy and two numbers in, dk and dv out
}
"""Kernel -> arrays like q or y, arrays like k or v, float32 numbers per query, products of q and k."""


def window(name: str, sizes: WindowSizes) -> Cost:
    """Return the cost of one of `WINDOW`.

    A query is multiplied with whole blocks of keys, and those of its own block of queries.
    """
    queries, keys, numbers, products = WINDOW[name]
    tokens, width = sizes.batch * sizes.length, (sizes.key_size + sizes.value_size) / 2
    size = sizes.itemsize * width * (queries * sizes.heads + keys * sizes.kv_heads)
    pairs = math.ceil(sizes.left / sizes.keys) * sizes.keys + sizes.queries
    return Cost(
        tokens * (size + FLOAT32 * numbers * sizes.heads), tokens * sizes.heads * pairs * 2 * width * products
    )


RECURRENCE = {
    ("linear_recurrence", "outputs"): (2, 32, 1, 1),
    ("linear_recurrence", "state_gradients"): (1, 32, 0, 0),
    ("linear_recurrence", "gradients"): (3, 64, 3, 2),
    ("delta_rule", "outputs"): (7, 16, 4, 4),
    ("delta_rule", "state_gradients"): (7, 16, 4, 4),
    ("delta_rule", "gradients"): (9, 32, 8, 9),
    ("channel_linear_recurrence", "outputs"): (2, 16, 16, 1),
    ("channel_linear_recurrence", "state_gradients"): (1, 16, 2, 0),
    ("channel_linear_recurrence", "gradients"): (3, 32, 55, 2),
    ("channel_delta_rule", "outputs"): (10, 16, 44, 8),
    ("channel_delta_rule", "state_gradients"): (7, 16, 28, 4),
    ("channel_delta_rule", "gradients"): (13, 16, 100, 16),
}
"""Form and kernel -> products with the state, tokens of a chunk, products of pairs of tokens with keys and
with values. One with float32's digits counts as three, one of ones and zeros as two."""


def recurrence(form: str, name: str, tokens: int, key_size: int, value_size: int) -> Cost:
    """Return the FLOPs of one of `RECURRENCE` for tokens of all heads; one in TF32 counts as two."""
    states, chunk, of_keys, of_values = RECURRENCE[form, name]
    tiles = math.ceil(value_size / 64)
    widths = states * key_size * value_size + chunk * (of_keys * tiles * key_size + of_values * value_size)
    return Cost(0, tokens * 4 * widths)
