"""GLA, gated linear attention (Yang et al. 2023, section 4; spec of Zoology 3.14).

    q, k, v = x W_q, x W_k, x W_v;   g = log sigmoid(x W_1 W_2 + b) / 16        one gate per key channel
    S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T,   y_t = S_t^T q_t / sqrt(d_k)     per head
    out = (RMSNorm(y) * silu(x W_g)) W_o

W_1 maps to 16 channels only. Dividing by 16 keeps gates near 1 at initialisation.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Factor, Positive, Repeats, Size
from based_jax.mixers.contract import Card, Projection, named, uniform
from based_jax.mixers.gated_heads import GatedHeads
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.ops.stream import Stream
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GLAState:
    """The matrix per head, and the last inputs of the convolutions if there are any."""

    memory: ops.LinearRecurrenceState
    conv: ops.ShortConvState | None

    @property
    def stream(self) -> Stream:
        """How far each row has come."""
        return self.memory.stream


class GLA(GatedHeads):
    """Gated linear attention.

    Attributes:
        num_heads: heads H; default 4 (fewer where 4 does not divide).
        gate_low_rank_dim: channels between x and its gates.
        gate_logit_normalizer: divides the gates' logarithms.
        kernel_size: taps of short convolutions of q, k and v, each followed by silu; None for none.
    """

    card: ClassVar[Card] = Card(
        equation="S_t = diag(e^{g_t}) S_{t-1} + k_t v_t^T, y_t = q_t S_t",
        training="N (C + d_k) D",
        state="d_k d_v H",
        decoding="d_k d_v H",
        source="Yang et al. 2023; Based, Table 13",
        parity=(
            "zoology/gla",
            "ops/gla",
        ),
    )

    expand_k: Factor = 0.5
    gate_low_rank_dim: Size = 16
    gate_logit_normalizer: Positive = 16.0
    kernel_size: Repeats | None = None

    @nn.nowrap
    def most_heads(self) -> int:
        return 4

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B N D"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        x = self.check_input(x)
        _, key_size, value_size = self.layout()
        context: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask}
        sizes = {"q": key_size, "k": key_size, "v": value_size}
        q, k, v = (self.project(x, name, size) for name, size in sizes.items())
        conv = None
        if self.kernel_size is not None:
            (q, k, v), conv = self._convolve((q, k, v), None if state is None else state.conv, **context)
        y, memory = self.recur(
            q, k, v, self._log_decay(x), initial_state=None if state is None else state.memory, **context
        )
        scale = self.param("norm_scale", named(nn.initializers.ones_init(), "head_dim"), (value_size,))
        y = self.read_out(ops.rms_norm(y, scale, self.norm_eps), x)
        return y, None if state is None else GLAState(memory, conv)

    def _log_decay(self, x: Float[Array, "B N D"]) -> Float[Array, "B N H K"]:
        expect(self.gate_low_rank_dim >= 1, "gate_low_rank_dim", self.gate_low_rank_dim, "at least 1")
        expect(
            self.gate_logit_normalizer > 0, "gate_logit_normalizer", self.gate_logit_normalizer, "more than 0"
        )
        heads, key_size, _ = self.layout()
        low = Projection(
            (self.gate_low_rank_dim,), ("embed", None), dtype=self.dtype, init_std=self.init_std,
            name="decay_in",
        )(x)  # fmt: skip
        logits = Projection(
            (heads, key_size), (None, "heads", "head_dim"), bias=True, dtype=accumulation_dtype(x),
            init_std=self.init_std, name="decay_out",
        )(low)  # fmt: skip
        return jax.nn.log_sigmoid(logits) / self.gate_logit_normalizer

    def _convolve(
        self, heads: tuple[Array, Array, Array], state: ops.ShortConvState | None, **context: Any
    ) -> tuple[list[Array], ops.ShortConvState]:
        """Short convolutions of q, k and v, as one."""
        taps = self._taps
        flat = [x.reshape(*x.shape[:2], -1) for x in heads]
        kernels = [
            self.param(f"{name}_conv", named(uniform(taps**-0.5), None, "heads"), (taps, x.shape[-1]))
            for name, x in zip("qkv", flat, strict=True)
        ]
        y, new_state = ops.short_conv(
            jnp.concatenate(flat, axis=-1), jnp.concatenate(kernels, axis=-1),
            initial_state=state, return_state=True, **context,
        )  # fmt: skip
        q_size, k_size = flat[0].shape[-1], flat[1].shape[-1]
        parts = jnp.split(jax.nn.silu(y), [q_size, q_size + k_size], axis=-1)
        return [part.reshape(x.shape) for part, x in zip(parts, heads, strict=True)], new_state

    @property
    def _taps(self) -> int:
        taps = self.kernel_size or 0
        expect(taps >= 1, "kernel_size", self.kernel_size, "None or at least 1")
        return taps

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        heads, key_size, value_size = self.layout()
        wide = jnp.promote_types(self.dtype, jnp.float32)
        conv = None
        if self.kernel_size is not None:
            channels = heads * (2 * key_size + value_size)
            dtype = self.dtype if dtype is None else dtype
            conv = ops.init_short_conv_state(batch_size, channels, self._taps, dtype)
        memory = ops.init_linear_recurrence_state(batch_size, heads, key_size, value_size, wide)
        return GLAState(memory, conv)
