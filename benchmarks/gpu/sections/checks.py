"""Check every kernel variant against float64: small problems with every option."""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from based_jax import ops
from benchmarks.gpu.sections import reference
from pallas_kernels import Rotary

TOLERANCES = {
    ("bfloat16", None): 2e-2,  # operands of 8 bits, as the inputs have
    ("float16", None): 5e-3,  # TF32 operands, 11 bits
    ("float32", None): 5e-3,
    ("float32", "highest"): 2e-5,
}
"""(dtype, precision) -> largest error of an array over its largest value."""

BY_TOKEN = ("y", "dq", "dk", "dv")
"""Arrays with an axis of tokens."""


@dataclass(frozen=True)
class Outcome:
    """The result of a check."""

    errors: dict[str, float]
    """array -> largest difference over the largest value; inf where not finite"""
    tolerance: float
    deterministic: bool
    """whether two runs gave the same bits"""

    @property
    def problem(self) -> str:
        """Describe what is wrong, or return an empty text."""
        wrong = [f"{name} is off by {e:.2g}" for name, e in self.errors.items() if not e <= self.tolerance]
        return "; ".join(wrong + ([] if self.deterministic else ["two runs differ"]))


@dataclass(frozen=True)
class Program:
    """A traced check that has not been compiled yet; it may be compiled in a thread."""

    lowered: jax.stages.Lowered
    judge: Callable[[jax.stages.Compiled], Outcome]
    """runs the compiled program twice and compares with float64"""


class Check(abc.ABC):
    """A problem with its own sizes."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """A line for reports and test ids."""

    @abc.abstractmethod
    def tiny(self) -> "Check":
        """Return the same options with sizes for the interpreter."""

    @abc.abstractmethod
    def program(self) -> Program:
        """Trace the kernel on the problem."""

    def run(self) -> Outcome:
        """Compile, run the kernel twice and compare with float64."""
        program = self.program()
        return program.judge(program.lowered.compile())


@dataclass(frozen=True)
class Attention(Check):
    """`taylor_attention`, its final state, and all gradients."""

    key_size: int = 16
    value_size: int = 64
    dtype: str = "bfloat16"
    precision: str | None = None
    length: int = 1000
    batch: int = 2
    heads: int = 2
    packed: bool = False
    """segments, padding, an initial state and a gradient of the final one"""
    block: int | None = None
    implementation: str = "pallas"

    @property
    def name(self) -> str:
        words = [f"attention K{self.key_size} V{self.value_size} {self.dtype} N{self.length}", self.precision]
        words += ["packed with state" * self.packed, self.block and f"block {self.block}"]
        words += [self.implementation] if self.implementation != "pallas" else []
        return " ".join(filter(None, words))

    def tiny(self) -> "Attention":
        return replace(self, length=130, batch=1, heads=1, block=130 if self.block else 64)

    def program(self) -> Program:
        rng, rows = np.random.default_rng(0), (self.batch, self.length, self.heads)
        sizes = (self.key_size, self.key_size, self.value_size, self.value_size)
        arrays = [jnp.asarray(rng.standard_normal((*rows, size)), self.dtype) for size in sizes]
        state, packing = [], []
        if self.packed:
            sums = _sums(rng, (self.batch, self.heads), self.key_size, self.value_size)
            gradients = (1e-3 * rng.standard_normal(x.shape) for x in sums)  # about as large as those of y
            state = [jnp.asarray(x, jnp.float32) for x in (*sums, *gradients)]
            # Row 0 continues from the initial state, row 1 starts anew.
            packing = [jnp.asarray(x) for x in packing_of(self.batch, self.length, -1)]
        options = {"precision": self.precision, "block": self.block, "backend": self.implementation}
        kernel = functools.partial(pallas_kernels.taylor_attention, **options)
        tolerance, arguments = TOLERANCES[self.dtype, self.precision], (arrays, state, packing)
        return traced(self._call, kernel, reference.taylor_attention, arguments, tolerance)

    def _call(self, attend: Any, arrays: Any, state: Any, packing: Any) -> dict[str, jax.Array]:
        """Return the results of `attend` and its gradients; of a state too, if packed."""
        q, k, v, dy = arrays
        if not self.packed:
            y, pull_back = jax.vjp(attend, q, k, v)
            return dict(zip(BY_TOKEN, (y, *pull_back(dy)), strict=True))
        kv, z, *gradients = state

        def packed(q, k, v, kv, z):
            starts, counts = packing
            return attend(q, k, v, initial_state=(kv, z), return_state=True, starts=starts, counts=counts)

        (y, last), pull_back = jax.vjp(packed, q, k, v, kv, z)
        names = ("y", "kv", "z", *BY_TOKEN[1:], "dkv", "dz")
        return dict(zip(names, (y, *last, *pull_back((dy, tuple(gradients)))), strict=True))


@dataclass(frozen=True)
class Step(Check):
    """`taylor_step`, the state updated in place."""

    key_size: int = 16
    value_size: int = 64
    dtype: str = "bfloat16"
    state: str = "float32"
    batch: int = 5
    heads: int = 3
    implementation: str = "pallas"

    @property
    def name(self) -> str:
        twin = f" {self.implementation}" if self.implementation != "pallas" else ""
        return f"step K{self.key_size} V{self.value_size} {self.dtype} state {self.state}{twin}"

    def tiny(self) -> "Step":
        return replace(self, batch=1, heads=1)

    def program(self) -> Program:
        rng, rows = np.random.default_rng(0), (self.batch, self.heads)
        sizes = (self.key_size, self.key_size, self.value_size)
        arrays = [jnp.asarray(rng.standard_normal((*rows, size)), self.dtype) for size in sizes]
        sums = _sums(rng, rows, self.key_size, self.value_size)
        arrays += [jnp.asarray(x, self.state) for x in sums]
        tolerance = max(TOLERANCES[dtype, None] for dtype in (self.dtype, self.state))
        if self.dtype == self.state == "float32":
            tolerance = TOLERANCES["float32", "highest"]  # no matmul: arithmetic is float32 throughout
        step = functools.partial(pallas_kernels.taylor_step, backend=self.implementation)
        return traced(_step, step, reference.taylor_step, arrays, tolerance, donated=(3, 4))


@dataclass(frozen=True)
class Window(Check):
    """`window_step` on rows of several lengths, the rings updated in place."""

    slots: int = 64
    heads: int = 4
    kv_heads: int = 4
    size: int = 64
    dtype: str = "bfloat16"
    rotary: Rotary | None = None
    lengths: tuple[int, ...] = (0, 1, 63, 64, 65, 750)
    implementation: str = "pallas"

    @property
    def name(self) -> str:
        turned = f"rotary {self.rotary.dim}" if self.rotary else "no rotary"
        turned += f" {self.implementation}" if self.implementation != "pallas" else ""
        return f"window W{self.slots} H{self.heads} G{self.kv_heads} K{self.size} {self.dtype} {turned}"

    def tiny(self) -> "Window":
        return replace(self, heads=self.heads // self.kv_heads, kv_heads=1, lengths=(2, 70))

    def program(self) -> Program:
        rng, batch = np.random.default_rng(0), len(self.lengths)
        shapes = [(batch, n, self.size) for n in (self.heads, self.kv_heads, self.kv_heads)]
        shapes += [(batch, self.slots, self.kv_heads, self.size)] * 2
        arrays = [jnp.asarray(rng.standard_normal(shape), self.dtype) for shape in shapes]
        arrays.append(jnp.asarray(self.lengths, jnp.int32))
        options = {"rotary": self.rotary, "backend": self.implementation}
        kernel = functools.partial(pallas_kernels.window_step, **options)
        expected = functools.partial(reference.window_step, rotary=self.rotary)
        tolerance = TOLERANCES[self.dtype, "highest" if self.dtype == "float32" else None]  # no matmul
        return traced(_step, kernel, expected, arrays, tolerance, donated=(3, 4))


@dataclass(frozen=True)
class WindowAttention(Check):
    """`window_attention` and its gradients."""

    left: int = 63
    heads: int = 2
    kv_heads: int = 2
    size: int = 64
    dtype: str = "bfloat16"
    length: int = 1000
    batch: int = 2
    packed: bool = False
    """segments and padding"""

    @property
    def name(self) -> str:
        sizes = f"L{self.left} H{self.heads} G{self.kv_heads} K{self.size} {self.dtype} N{self.length}"
        return f"window attention {sizes}" + " packed" * self.packed

    def tiny(self) -> "WindowAttention":
        return replace(self, length=70, batch=1, heads=self.heads // self.kv_heads, kv_heads=1)

    def program(self) -> Program:
        rng, rows = np.random.default_rng(0), (self.batch, self.length)
        shapes = [(*rows, n, self.size) for n in (self.heads, self.kv_heads, self.kv_heads, self.heads)]
        arrays = [jnp.asarray(rng.standard_normal(shape), self.dtype) for shape in shapes]
        packing = [jnp.asarray(x) for x in packing_of(*rows, 0)] if self.packed else []

        def call(attend: Any, arrays: Any, packing: Any) -> dict[str, jax.Array]:
            named = dict(zip(("starts", "counts"), packing, strict=False))
            y, pull_back = jax.vjp(functools.partial(attend, left=self.left, **named), *arrays[:3])
            return dict(zip(BY_TOKEN, (y, *pull_back(arrays[3])), strict=True))

        tolerance = TOLERANCES[self.dtype, "highest" if self.dtype == "float32" else None]
        functions = pallas_kernels.window_attention, reference.window_attention
        # One visible key has the weight 1, so the gradients of queries and keys are 0.
        return traced(call, *functions, (arrays, packing), tolerance, zeros=True)


def _step(step: Any, *arrays: Any) -> dict[str, Any]:
    """Return the results of a step, numbered."""
    return {f"result {i}": x for i, x in enumerate(step(*arrays))}


def error(expected: np.ndarray, result: Any, least: float = 1e-30) -> float:
    """Return the largest difference over the largest expected value, or over `least` if that is more.

    It is inf if the result is not finite.
    """
    result = np.asarray(result).astype(np.float64)
    worst = float(np.abs(result - expected).max() / max(np.abs(expected).max(), least))
    return worst if math.isfinite(worst) else math.inf


def error_by_part(expected: np.ndarray, result: Any, largest: float = 0.0, part: int = 64) -> float:
    """Return the worst `error` of any `part` tokens (axis 1): the first tokens, which see few keys, have
    large gradients that would hide errors of later ones. Tiny parts are compared with 1/100 of the whole,
    or of `largest` if that is more."""
    result, least = np.asarray(result), max(0.01 * np.abs(expected).max(), 0.01 * largest, 1e-30)
    parts = range(0, expected.shape[1], part)
    return max(error(expected[:, i : i + part], result[:, i : i + part], least) for i in parts)


def same_bits(one: Any, two: Any) -> bool:
    """Return whether two trees of arrays are equal to the last bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def _sums(rng: np.random.Generator, rows: tuple[int, ...], key_size: int, value_size: int) -> Any:
    """Return sums over 50 tokens, like a state."""
    keys = jnp.asarray(rng.standard_normal((*rows, 50, key_size)))
    phi = np.asarray(ops.symmetric_taylor_features(keys))
    return phi.swapaxes(-1, -2) @ rng.standard_normal((*rows, 50, value_size)), phi.sum(-2)


def packing_of(batch: int, length: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return starts of segments (B, N), beginning with `first` in even rows and 0 in odd ones, and counts."""
    edges = [int(length * x) for x in (0.31, 0.32, 0.7)]
    starts, counts = np.zeros((batch, length), np.int32), np.full(batch, length, np.int32)
    for row in range(batch):
        begins = np.array([first * (row % 2 == 0), *edges])
        starts[row] = begins[np.searchsorted(edges, range(length), "right")]
        counts[row] -= 7 * (row + 1)
        starts[row, counts[row] :] = starts[row, counts[row] - 1]
    return starts, counts


def traced(
    call: Callable[..., dict[str, Any]],
    kernel: Any,
    expected: Any,
    arguments: Sequence[Any],
    tolerance: float,
    zeros: bool = False,
    donated: tuple[int, ...] = (),
) -> Program:
    """Trace `call(kernel, *arguments)`, to be compared with `call(expected, *arguments)` in float64.

    Args:
        zeros: whether whole gradients may be 0, so that errors are compared with the largest one.
        donated: indices of arguments that the kernel overwrites.
    """
    program = jax.jit(functools.partial(call, kernel), donate_argnums=donated)

    def judge(compiled: jax.stages.Compiled) -> Outcome:
        given = (jax.tree.map(jnp.copy, arguments) for _ in range(2))
        results, again = (jax.block_until_ready(compiled(*each)) for each in given)
        wide = jax.tree.map(_rounded, arguments)
        with jax.enable_x64(True), jax.default_device(_host()):
            wanted = jax.tree.map(np.asarray, jax.jit(functools.partial(call, expected))(*wide))
        largest = max(float(np.abs(wanted[name]).max()) for name in BY_TOKEN[1:]) if zeros else 0.0
        errors = {
            name: error_by_part(wanted[name], x, largest) if name in BY_TOKEN else error(wanted[name], x)
            for name, x in results.items()
        }
        return Outcome(errors, tolerance, same_bits(results, again))

    return Program(program.lower(*arguments), judge)


def _host() -> Any:
    """Return the CPU; None if JAX_PLATFORMS has the GPU alone, which then computes the reference, too."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _rounded(x: jax.Array) -> np.ndarray:
    """Return what the kernel reads: floats in float64."""
    is_integer = jnp.issubdtype(x.dtype, jnp.integer)
    return np.asarray(x) if is_integer else np.asarray(x.astype(jnp.float32), np.float64)
