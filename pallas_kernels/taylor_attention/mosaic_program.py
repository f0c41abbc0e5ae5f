"""The program of the Mosaic kernels: one row, head, 64 value channels and block of tokens, in chunks.

Warpgroup w of the two owns tokens 64 w to 64 w + 63 of a chunk of 128 and one half of the state's columns:

    S (values, features)  += v^T phi(k)          64 x 112 float32 in each one's registers, all of it bfloat16
    moments               += [.. k 1]^T k        64 x 16 float32, in shared memory

Tokens are loaded through two stages of shared memory, one filled by the copy engine while the other is used.
`mosaic_chunk` processes a chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.taylor_attention import mosaic_features as features
from pallas_kernels.taylor_attention import mosaic_launch as gpu
from pallas_kernels.taylor_attention.mosaic_chunk import Chunk
from pallas_kernels.taylor_attention.mosaic_features import KEY_SIZE
from pallas_kernels.taylor_attention.mosaic_launch import plgpu
from pallas_kernels.taylor_attention.mosaic_plan import (
    CHUNK,
    KEYS,
    PART,
    PUBLISHED,
    QUERIES,
    SHARE,
    STAGES,
    Plan,
    Side,
    State,
    bf16,
)


class Program:
    """One running program, from the view of one of its warpgroups."""

    def __init__(
        self, plan: Plan, side: Side, sources: dict[str, Any], scratch: dict[str, Any], first_block: int = 0
    ):
        self.plan, self.side, self.sources, self.scratch = plan, side, sources, scratch
        head = lax.axis_index("head")
        self.head, self.part = head, 0
        if plan.parts > 1:
            self.head, self.part = lax.div(head, plan.parts), lax.rem(head, plan.parts)
        self.share_of_head = head
        """index of its head and part"""
        self.row, self.block = lax.axis_index("row"), lax.axis_index("block")
        self.first_token = (self.block + first_block) * plan.block
        self.group = lax.axis_index(gpu.WARPGROUP)
        self.rows = pl.ds(self.group * PART, PART)
        """its tokens in a chunk"""
        self.share = pl.ds(self.group * SHARE, SHARE)
        self.values = pl.ds(self.part * PART, PART)

    def walk(self, prefix: Sequence[Any], read: Callable[[Chunk, State], None] | None = None) -> State:
        """Scan the block's chunks, queries from the last to the first, from the state in `prefix`, if any.

        Args:
            read: called with each chunk and the state before it; calls `Chunk.write_features`.
        """
        chunks = self.plan.block // CHUNK
        state = self._start(prefix)
        self.synchronise(PUBLISHED)

        def at(step: Any) -> Any:
            return chunks - 1 - step if self.side is QUERIES else step

        @pl.when(self.group == 0)
        def _fill() -> None:
            for stage in range(min(STAGES, chunks)):
                self._fetch(at(stage), stage)

        def step(number: Any, state: State) -> State:
            # Always 0, but unknown to the compiler: values that depend on it are recomputed in each iteration
            # instead of occupying registers throughout the loop.
            zero = (state.rounds < 0).astype(jnp.int32)
            chunk = Chunk(self, at(number), lax.rem(number, STAGES), zero)
            if read:
                read(chunk, state)
            else:
                chunk.write_features()
            state = chunk.add(state)

            @pl.when((self.group == 0) & (number + STAGES < chunks))
            def _refill() -> None:
                self._fetch(at(number + STAGES), chunk.stage)

            return state

        state = lax.fori_loop(0, chunks, step, state)
        if read:
            plgpu.wait_smem_to_gmem(0)
        return state

    def store(self, state: State, kv: Any, moments: Any, block: Any) -> None:
        """Store a block's state into refs (B, H, blocks, V, 224) and (B, H or H parts, blocks, 64, 16)."""
        gpu.store(kv.at[self.row, self.head, block, self.values, self.share], state.kv)

        @pl.when((self.group == 0) & ((self.part == 0) | (self.side is QUERIES)))
        def _moments() -> None:
            sums = gpu.load(self.scratch["moments"])
            if self.side is KEYS:
                count = gpu.iota((features.ROWS, KEY_SIZE), 0) == features.COUNT
                sums = jnp.where(count, state.count, sums)
            gpu.store(moments.at[self.row, self._moments_index(), block], sums)

    def _start(self, prefix: Sequence[Any]) -> State:
        if not prefix:
            kv, sums, count = gpu.zeros(PART, SHARE), gpu.zeros(features.ROWS, KEY_SIZE), jnp.float32(0)
        else:
            kv = gpu.load(prefix[0].at[self.row, self.head, self.block, self.values, self.share])
            moments = prefix[1].at[self.row, self._moments_index(), self.block]
            sums, count = gpu.load(moments), moments[features.COUNT, 0]
        self._publish(kv)
        pl.when(self.group == 0)(lambda: self.keep_moments(sums))
        return State(kv, count, jnp.float32(0))

    def _moments_index(self) -> Any:
        """Return the index of the moments: parts share the keys', and have their own of the queries."""
        return self.head if self.side is KEYS else self.share_of_head

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
        tokens = pl.ds(self.first_token + number * CHUNK, CHUNK)
        indices = {
            "rden": (self.row, self.head, tokens),
            "e": (self.row, self.share_of_head, tokens),
            **dict.fromkeys(("v", "do", "y"), (self.row, tokens, self.head, self.values)),
        }
        for scratch, ref in self.scratch.items():
            name = scratch.removeprefix("plain_")
            if name in self.sources:
                index = indices.get(name, (self.row, tokens, self.head, slice(None)))
                source, arrived = self.sources[name].at[index], self.scratch["arrived"].at[stage]
                plgpu.copy_gmem_to_smem(source, ref.at[stage], arrived)
