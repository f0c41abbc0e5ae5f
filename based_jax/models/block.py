"""A residual block: a sequence mixer and an MLP, in one of four arrangements.

    prenorm         r = r + drop(h);  r = r + drop(mixer(norm1(r)));  h = mlp(norm2(r))
    postnorm        a = norm1(drop(mixer(h)) + h);  h = norm2(drop(mlp(a)) + a)
    parallel        r = r + h;  h = drop(mixer(norm1(r))) + drop(mlp(norm2(r)))
    parallel_tied   the same with one norm, norm2 = norm1

A prenorm block may norm the outputs of its branches instead of their inputs (OLMo 2's reordered norms):

    r = r + drop(h);  r = r + drop(norm1(mixer(r)));  h = norm2(mlp(r))

or, without an MLP (Mamba, RWKV), r = r + h;  h = mixer(norm1(r)), and h = norm1(mixer(h) + h). All but the
second carry the residual stream r in addition to the branch's output h. It stays in float32: in a bfloat16
model the sum over dozens of layers would otherwise lose small contributions.

Blocks that repeat can run as one loop (`run_repeats`): traced once; with `remat`, one iteration's activations
at a time. Checkpoints and the converter keep the parameters per layer (`layers_0`, `layers_1`, ...). They are
stacked inside the step, which holds a second copy of them and of their gradients.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from based_jax.mixers.contract import Mixer
from based_jax.models.layers import MLP, Drop, IdentityMLP, RMSNorm, make_norm
from based_jax.ops.core.arrays import accumulation_dtype
from based_jax.ops.core.nan_isolation import numbers
from based_jax.ops.core.products import PendingNorm
from based_jax.ops.core.sharding import keep_tokens
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_choice

BLOCKS = ("prenorm", "postnorm", "parallel", "parallel_tied")


class Block(nn.Module):
    """Residual block around any mixer and MLP (flash-attention's Block and ParallelBlock).

    Attributes:
        mixer: an unbound mixer.
        mlp: an unbound MLP; None for a block of one norm and a mixer.
        norm: "rms" or "layer".
        norm_eps: epsilon of the norms.
        dtype: dtype of the inputs of mixer and MLP.
        kind: one of `BLOCKS`; parallel blocks need an MLP.
        dropout1: dropout rate of the branch added first: h in a prenorm block, else the mixer's output.
        dropout2: dropout rate of the branch added second.
        drop_path: probability that a row skips a whole branch; not in parallel blocks.
        residual_in_fp32: keep the stream in float32 even if `dtype` is narrower.
        norms_outputs: norm the outputs of mixer and MLP, not their inputs; prenorm blocks only.
    """

    mixer: Mixer
    mlp: MLP | IdentityMLP | None
    norm: str = "rms"
    norm_eps: float = 1e-5
    dtype: Any = jnp.float32
    kind: str = "prenorm"
    dropout1: float = 0.0
    dropout2: float = 0.0
    drop_path: float = 0.0
    residual_in_fp32: bool = True
    norms_outputs: bool = False

    def setup(self) -> None:
        expect_choice("kind", self.kind, BLOCKS)
        expect(self.mlp is not None or not self.is_parallel, "mlp", None, f"an MLP in a {self.kind} block")
        expect(not (self.drop_path and self.is_parallel), "drop_path", self.drop_path, f"0 if {self.kind}")
        can_norm = self.kind == "prenorm" or not self.norms_outputs
        expect(can_norm, "norms_outputs", True, f"False in a {self.kind} block")
        self.norm1 = make_norm(self.norm, self.norm_eps, self.dtype)
        if self.mlp is not None and self.kind != "parallel_tied":
            self.norm2 = make_norm(self.norm, self.norm_eps, self.dtype)
        self.drop1 = Drop(self.dropout1, self.drop_path)
        self.drop2 = Drop(self.dropout2, self.drop_path)

    @property
    def is_parallel(self) -> bool:
        """Whether mixer and MLP read the same stream."""
        return self.kind.startswith("parallel")

    def __call__(
        self,
        h: Float[Array, "B N D"],
        residual: Float[Array, "B N D"] | None = None,
        state: State | None = None,
        **context: Any,
    ) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"] | None, State | None]:
        """Run the block.

        Args:
            h: output of the previous block (or the embedding).
            residual: the stream before h was added; None for the first block, and in post-norm models.
            context: further arguments of the mixer.

        Returns:
            h (B, N, D), not yet added to the stream; the stream (None in a post-norm block); the mixer's
            state.
        """
        if self.kind == "postnorm":
            return self._postnorm(h, state, context)
        wide = accumulation_dtype(h) if self.residual_in_fp32 else jnp.dtype(self.dtype)
        h = h if self.is_parallel else self.drop1(h)
        if self.norms_outputs:
            return self._norming_outputs(h.astype(wide), residual, state, context)
        if residual is None and wide != accumulation_dtype(h):
            residual = jnp.zeros_like(h)
        can_compute = self.mixer.projects_input and not self.is_parallel and context.get("mask") is None
        stream, x, are_numbers = _add(self.norm1, can_compute, residual, h)
        # A fused norm knows which tokens are numbers. The next one marks those that the mixer breaks and adds
        # the mixer's bias, which dropout would have to precede.
        is_pending = stream is None  # till the mixer has read x
        marks = (are_numbers is not None or is_pending) and self.mlp is not None and not self.is_parallel
        marks = marks and self.dropout2 == self.drop_path == 0
        if are_numbers is None and not is_pending and state is not None and h.shape[1] == 1:
            # The norm is finite where the stream is; checking the stream fuses with the preceding sum.
            are_numbers, x = jnp.isfinite(stream).all(axis=-1), numbers(x, None)
        if are_numbers is not None or is_pending:
            context |= {"are_numbers": are_numbers, "apart": marks}
        mixed, state = self.mixer(x, state, **context)
        stream = _summed(x, stream)
        if self.mlp is None:
            return mixed, stream, state
        if self.is_parallel:
            inner = self.mlp(x if self.kind == "parallel_tied" else self.norm2(stream))
            return self.drop1(mixed).astype(wide) + self.drop2(inner).astype(wide), stream, state
        mixed, *rest = mixed if marks else (mixed,)
        stream, x, _ = _add(self.norm2, self.mlp.projects_input, stream, self.drop2(mixed), *rest)
        h = self.mlp(x)
        return h, _summed(x, stream), state

    def _norming_outputs(
        self,
        h: Float[Array, "B N D"],
        residual: Float[Array, "B N D"] | None,
        state: State | None,
        context: dict[str, Any],
    ) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"], State | None]:
        stream = keep_tokens(h if residual is None else residual + h)
        mixed, state = self.mixer(stream.astype(self.dtype), state, **context)
        h = self.norm1(mixed)
        if self.mlp is None:
            return h, stream, state
        stream = keep_tokens(stream + self.drop2(h).astype(stream.dtype))
        return self.norm2(self.mlp(stream.astype(self.dtype))), stream, state

    def _postnorm(
        self, h: Float[Array, "B N D"], state: State | None, context: dict[str, Any]
    ) -> tuple[Float[Array, "B N D"], None, State | None]:
        mixed, state = self.mixer(h, state, **context)
        h = self.norm1(self.drop1(mixed) + h)
        return (h if self.mlp is None else self.norm2(self.drop2(self.mlp(h)) + h)), None, state


def _add(norm: Any, can_compute: bool, *rows: Any) -> tuple[Any, Any, Any]:
    """Return a norm of summed rows, see `RMSNorm`; pending if what reads it `can_compute` it."""
    return norm(*rows, pending=True) if can_compute and isinstance(norm, RMSNorm) else norm(*rows)


def _summed(x: Any, stream: Any) -> Any:
    """Return the stream of which x is the norm."""
    return x.stream if isinstance(x, PendingNorm) else stream


def find_repeats(schedule: str) -> tuple[range, int]:
    """Return the range of repeated layers and the period that leave the fewest layers to trace.

    Without repetition the range is empty. Ties go to the shortest, then the earliest period.

    >>> find_repeats("XCLSCCCLSCCCLSCCY")
    (range(1, 16), 5)
    """
    best, saved = (range(0), 1), 0
    for period in range(1, len(schedule) // 2 + 1):
        for start in range(len(schedule) - 2 * period + 1):
            turn, times = schedule[start : start + period], 1
            while schedule.startswith(turn, start + times * period):
                times += 1
            if period * (times - 1) > saved:
                saved = period * (times - 1)
                best = range(start, start + times * period), period
    return best


def run_repeats(
    blocks: Sequence[Block],
    period: int,
    h: Float[Array, "B N D"],
    residual: Float[Array, "B N D"] | None,
    **context: Any,
) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"] | None]:
    """Run the bound `blocks` in sequence, without states, as one loop.

    Args:
        blocks: pure layers (`Mixer.is_pure`) that repeat after `period` layers except for their parameters.
        h: output of the layer before; residual: the stream, None before the first layer.
        context: further arguments of the blocks.
    """
    turn = [block.unbind()[0] for block in blocks[:period]]
    params = [block.variables["params"] for block in blocks]
    stacked = [
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *params[index::period]) for index in range(period)
    ]

    def body(carry: tuple[Any, Any], params: list[Any]) -> tuple[tuple[Any, Any], None]:
        h, residual = carry
        for block, own in zip(turn, params, strict=True):
            outputs: Any = block.apply({"params": own}, h, residual, **context)
            h, residual, _ = outputs
        return (h, residual), None

    if residual is None and turn[0].kind != "postnorm":
        wide = accumulation_dtype(h) if turn[0].residual_in_fp32 else h.dtype
        residual = jnp.zeros(h.shape, wide)
    return lax.scan(body, (h, residual), stacked)[0]
