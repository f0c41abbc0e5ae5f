"""The program of the Mosaic kernels: one row, head, 64 value channels and block of tokens, in chunks.

Warpgroup w of the two owns tokens 64 w to 64 w + 63 of a chunk of 128 and one half of the state's columns:

    S (values, features)  += v^T phi(k)          64 x 112 float32 in each one's registers, all of it bfloat16
    moments               += [.. k 1]^T k        64 x 16 float32, in shared memory

Tokens are loaded through two stages of shared memory, one filled by the copy engine while the other is used.
`mosaic_chunk` processes a chunk.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention.mosaic_chunk import Chunk
from pallas_kernels.taylor_attention.mosaic_features import KEY_SIZE
from pallas_kernels.taylor_attention.mosaic_launch import WARPGROUP, iota, load, plgpu, store, zeros
from pallas_kernels.taylor_attention.mosaic_plan import (
    CHUNK,
    PART,
    PUBLISHED,
    SHARE,
    STAGES,
    Plan,
    State,
    Tokens,
    bf16,
)


class Program:
    """One running program, from the view of one of its warpgroups."""

    def __init__(self, plan: Plan, tokens: Tokens, scratch: dict[str, Any]):
        self.plan, self.tokens, self.scratch = plan, tokens, scratch
        head = lax.axis_index("head")
        self.head, self.part = head, 0
        if plan.parts > 1:
            self.head, self.part = lax.div(head, plan.parts), lax.rem(head, plan.parts)
        self.row, self.block = lax.axis_index("row"), lax.axis_index("block")
        self.group = lax.axis_index(WARPGROUP)
        self.rows = pl.ds(self.group * PART, PART)
        """its tokens in a chunk"""
        self.share = pl.ds(self.group * SHARE, SHARE)
        self.values = pl.ds(self.part * PART, PART)

    def walk(self, prefix: Sequence[Any], results: Sequence[Any]) -> State:
        """Scan the block's chunks from the state in `prefix`, if any; `results` are the refs y and rden."""
        chunks = self.plan.block // CHUNK
        state = self._start(prefix)
        self.synchronise(PUBLISHED)

        @pl.when(self.group == 0)
        def _fill() -> None:
            for stage in range(min(STAGES, chunks)):
                self._fetch(stage, stage)

        def step(number: Any, state: State) -> State:
            # Always 0, but unknown to the compiler: values that depend on it are recomputed in each iteration
            # instead of occupying registers throughout the loop.
            chunk = Chunk(self, number, (state.rounds < 0).astype(jnp.int32))
            if results:
                chunk.read(state, *results)
            state = chunk.add(state)

            @pl.when((self.group == 0) & (number + STAGES < chunks))
            def _refill() -> None:
                self._fetch(number + STAGES, chunk.stage)

            return state

        state = lax.fori_loop(0, chunks, step, state)
        if results:
            plgpu.wait_smem_to_gmem(0)
        return state

    def store(self, state: State, kv: Any, moments: Any, block: Any) -> None:
        """Store a block's state into refs (B, H, blocks, V, 224) and (B, H, blocks, 64, 16)."""
        at = (self.row, self.head, block)
        store(kv.at[(*at, self.values, self.share)], state.kv)

        @pl.when((self.group == 0) & (self.part == 0))
        def _moments() -> None:
            sums = load(self.scratch["moments"])
            count = iota((features.ROWS, KEY_SIZE), 0) == features.COUNT
            store(moments.at[at], jnp.where(count, state.count, sums))

    def _start(self, prefix: Sequence[Any]) -> State:
        if not prefix:
            kv, sums, count = zeros(PART, SHARE), zeros(features.ROWS, KEY_SIZE), jnp.float32(0)
        else:
            at = (self.row, self.head, self.block)
            kv = load(prefix[0].at[(*at, self.values, self.share)])
            sums = load(prefix[1].at[at])
            count = prefix[1][(*at, features.COUNT, 0)]
        self._publish(kv)
        pl.when(self.group == 0)(lambda: self.keep_moments(sums))
        return State(kv, count, jnp.float32(0))

    def _publish(self, kv: jax.Array) -> None:
        """Write this warpgroup's part of the state, rounded, to shared memory for the other one."""
        if "kv" in self.scratch:
            self.scratch["kv"][0, :, self.share] = kv.astype(bf16)

    def keep_moments(self, sums: jax.Array) -> None:
        """Store the moments in shared memory, and rounded for products with queries."""
        self.scratch["moments"][...] = sums
        if "rounded" in self.scratch:
            self.scratch["rounded"][...] = sums.astype(bf16)

    def published(self, state: State) -> State:
        """Publish `state` to both warpgroups and synchronise them."""
        self._publish(state.kv)
        self.synchronise(PUBLISHED)
        return state

    def synchronise(self, barrier: int) -> None:
        """Synchronise both warpgroups, so that each sees the other's writes to shared memory."""
        plgpu.commit_smem()
        plgpu.barrier_arrive(self.scratch["together"].at[barrier])
        plgpu.barrier_wait(self.scratch["together"].at[barrier])

    def _fetch(self, number: Any, stage: Any) -> None:
        """Start copies of a chunk's tokens."""
        tokens = pl.ds(self.block * self.plan.block + number * CHUNK, CHUNK)
        names = {"k": self.tokens.k, "plain_k": self.tokens.k, "v": self.tokens.v}
        if self.tokens.q is not None:
            names["plain_q"] = self.tokens.q
        for name, source in names.items():
            channels = self.values if name == "v" else slice(None)
            plgpu.copy_gmem_to_smem(
                source.at[self.row, tokens, self.head, channels],
                self.scratch[name].at[stage],
                self.scratch["arrived"].at[stage],
            )
