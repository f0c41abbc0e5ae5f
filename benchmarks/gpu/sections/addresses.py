"""A check of more than one kernel call: addresses beyond 32 bits."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from benchmarks.gpu.sections.checks import TOLERANCES, Check, Outcome, Program, error


@dataclass(frozen=True)
class Addresses(Check):
    """The last row of arrays of more than 2^31 elements must equal the row computed alone."""

    rows: int = 33
    length: int = 65536
    heads: int = 16

    @property
    def name(self) -> str:
        return f"addresses R{self.rows} N{self.length}"

    def tiny(self) -> "Addresses":
        return replace(self, rows=2, length=130, heads=1)

    def program(self) -> Program:
        def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            shape = (self.rows, self.length, self.heads)
            q = jax.random.normal(key, (*shape, 16), jnp.bfloat16)
            v = jax.random.normal(key, (*shape, 64), jnp.bfloat16)
            alone = pallas_kernels.taylor_attention(q[-1:], q[-1:], v[-1:], block=self.length)
            return pallas_kernels.taylor_attention(q, q, v)[-1:], alone

        def judge(compiled: jax.stages.Compiled) -> Outcome:
            y, alone = jax.block_until_ready(compiled(jax.random.key(0)))
            expected = np.asarray(alone.astype(jnp.float32), np.float64)
            return Outcome({"y": error(expected, y)}, TOLERANCES["bfloat16", None], True)

        return Program(jax.jit(run).lower(jax.random.key(0)), judge)
