"""Checks of the kernels of recurrences against float64, with their states, segments and padding."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import ops
from benchmarks.gpu.sections.checks import TOLERANCES, Check, Program, packing_of, traced

Draw = Callable[..., jax.Array]
"""makes normally distributed numbers of a shape and dtype (default float32)"""


@dataclass(frozen=True, kw_only=True)
class Recurrence(Check):
    """A recurrence, its final state, and all gradients."""

    dtype: str = "bfloat16"
    length: int = 1000
    batch: int = 2
    packed: bool = False
    """segments and padding"""

    @abc.abstractmethod
    def inputs(self, draw: Draw) -> dict[str, jax.Array]:
        """Return the arguments, the first of y's shape and dtype, and the state before the first token."""

    @abc.abstractmethod
    def call(self, tokens: Sequence[Any], state: Any, **options: Any) -> tuple[jax.Array, jax.Array]:
        """Run the op; return y and the state's array."""

    def program(self) -> Program:
        rng, length = np.random.default_rng(0), self.length

        def draw(shape: tuple[int, ...], dtype: Any = "float32") -> jax.Array:
            return jnp.asarray(rng.standard_normal(shape), dtype)

        inputs = self.inputs(draw)
        names, arrays = tuple(inputs), tuple(inputs.values())
        first, *_, state = arrays
        gradients = draw(first.shape, first.dtype), draw(state.shape)
        packing = [jnp.asarray(each) for each in packing_of(self.batch, length, 0)] if self.packed else []

        def call(implementation: str, arrays: Any, gradients: Any, packing: Any) -> dict[str, jax.Array]:
            options: dict[str, Any] = {"return_state": True, "implementation": implementation}
            if packing:
                ids, counts = packing
                options |= {"segment_ids": ids, "mask": jnp.arange(length) < counts[:, None]}
            (y, last), pull_back = jax.vjp(lambda *x: self.call(x[:-1], x[-1], **options), *arrays)
            found = zip(names, pull_back(gradients), strict=True)
            return {"y": y, "last": last} | {f"d{name}": x for name, x in found}

        return traced(call, "pallas", "reference", (arrays, gradients, packing), self.tolerance)

    @property
    def tolerance(self) -> float:
        """Largest error."""
        return TOLERANCES[self.dtype, None]


@dataclass(frozen=True)
class Scan(Recurrence):
    """`selective_scan`."""

    channels: int = 96
    states: int = 16

    @property
    def name(self) -> str:
        sizes = f"E{self.channels} S{self.states} {self.dtype} N{self.length}"
        return f"scan {sizes}" + " packed" * self.packed

    def tiny(self) -> "Scan":
        return replace(self, length=70, batch=1, channels=32, states=4)

    def inputs(self, draw: Draw) -> dict[str, jax.Array]:
        tokens, maps = (self.batch, self.length, self.channels), (self.batch, self.length, self.states)
        x, B, C = (draw(shape, self.dtype) for shape in (tokens, maps, maps))
        rates = {"A": -jnp.exp(draw((self.channels, self.states))), "B": B, "C": C}
        rest = {"D": draw((self.channels,)), "h": draw((self.batch, self.channels, self.states))}
        return {"x": x, "dt": jax.nn.softplus(draw(tokens) - 3), **rates, **rest}

    def call(self, tokens: Sequence[Any], state: Any, **options: Any) -> tuple[jax.Array, jax.Array]:
        before = replace(ops.init_diagonal_scan_state(self.batch, state.shape[1:]), h=state)
        y, after = ops.selective_scan(*tokens, initial_state=before, **options)
        return y, after.h

    @property
    def tolerance(self) -> float:
        """Largest error; without products, float32 keeps its digits."""
        return TOLERANCES[self.dtype, "highest" if self.dtype == "float32" else None]


@dataclass(frozen=True)
class LinearRecurrence(Recurrence):
    """`linear_recurrence`, `delta_rule`, or with gates per channel `generalized_delta_rule`."""

    erases: bool = True
    """by the delta rule"""
    per_channel: bool = False
    """gates; without erasure there is a bonus"""
    key_size: int = 128
    value_size: int = 128
    heads: int = 2

    @property
    def name(self) -> str:
        sizes = f"K{self.key_size} V{self.value_size} {self.dtype} N{self.length}"
        kind = "channel " * self.per_channel + ("delta rule" if self.erases else "recurrence")
        return f"{kind} {sizes}" + " packed" * self.packed

    def tiny(self) -> "LinearRecurrence":
        return replace(self, length=70, batch=1, heads=1, key_size=24, value_size=40)

    def inputs(self, draw: Draw) -> dict[str, jax.Array]:
        rows = self.batch, self.length, self.heads
        q, k = draw((*rows, self.key_size)), draw((*rows, self.key_size))
        tokens = {"v": draw((*rows, self.value_size), self.dtype), "q": q}
        tokens["k"] = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
        channels = (*rows, *[self.key_size] * self.per_channel)
        if self.erases and self.per_channel:
            a, tokens["k"] = tokens["k"], draw(q.shape)
            tokens |= {"a": a, "b": -2 * jax.nn.sigmoid(draw((*rows, 1))) * a}
        elif self.erases:
            tokens["beta"] = 2 * jax.nn.sigmoid(draw(rows))
        tokens["log_decay"] = -jax.nn.softplus(draw(channels) - 3)
        if self.per_channel and not self.erases:
            tokens["bonus"] = draw((self.heads, self.key_size))
        return tokens | {"kv": draw((self.batch, self.heads, self.key_size, self.value_size))}

    def call(self, tokens: Sequence[Any], state: Any, **options: Any) -> tuple[jax.Array, jax.Array]:
        v, q, k, *gates = tokens
        before = replace(ops.init_linear_recurrence_state(self.batch, *state.shape[1:]), kv=state)
        op: Any = ops.linear_recurrence
        if self.erases:
            op = ops.generalized_delta_rule if self.per_channel else ops.delta_rule
        elif self.per_channel:
            options["bonus"] = gates.pop()
        y, after = op(q, k, v, *gates, initial_state=before, **options)
        return y, after.kv


@dataclass(frozen=True)
class LinearAttention(Recurrence):
    """`linear_attention` of exponentials, by the kernel of `linear_recurrence`."""

    features: int = 128
    value_size: int = 64
    heads: int = 2

    @property
    def name(self) -> str:
        sizes = f"F{self.features} V{self.value_size} {self.dtype} N{self.length}"
        return f"linear attention {sizes}" + " packed" * self.packed

    def tiny(self) -> "LinearAttention":
        return replace(self, length=70, batch=1, heads=1, features=24, value_size=40)

    def inputs(self, draw: Draw) -> dict[str, jax.Array]:
        rows = self.batch, self.length, self.heads
        q, k = (draw((*rows, self.features), self.dtype) for _ in range(2))
        state = draw((self.batch, self.heads, self.features, self.value_size + 1))
        return {"v": draw((*rows, self.value_size), self.dtype), "q": q, "k": k, "sums": jnp.abs(state)}

    def call(self, tokens: Sequence[Any], state: Any, **options: Any) -> tuple[jax.Array, jax.Array]:
        v, q, k = tokens
        before = ops.init_linear_attention_state(self.batch, self.heads, self.features, self.value_size)
        before = replace(before, kv=state[..., :-1], k=state[..., -1])
        options |= {"feature_map": ops.feature_map("exp_half"), "initial_state": before}
        y, after = ops.linear_attention(q, k, v, **options)
        return y, jnp.concatenate([after.kv, after.k[..., None]], axis=-1)
