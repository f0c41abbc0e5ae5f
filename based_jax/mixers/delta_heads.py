"""What DeltaNet and Gated DeltaNet share: projections, convolutions, the delta rule, the output's norm."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Repeats, Size
from based_jax.mixers.contract import Mixer, Projection, head_layout, named, uniform
from based_jax.ops.dtypes import accumulation_dtype
from based_jax.ops.stream import Stream
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeltaState:
    """The convolutions' last inputs (q, k, v of head 0, then of head 1, ...), and the matrix per head."""

    conv: ops.ShortConvState
    memory: ops.LinearRecurrenceState

    @property
    def stream(self) -> Stream:
        """How far each row has come."""
        return self.memory.stream


class DeltaHeads(Mixer):
    """Heads with the delta rule; subclasses say how keys are normalised and what the gates are.

    Attributes:
        num_heads: heads H; default 2 (Zoology), 1 if d_model is odd.
        expand_v: value channels over query/key channels.
        kernel_size: taps of the short convolutions of q, k and v.
        use_gate: gate the normed output with silu(x W_g).
        norm_eps: of the output's root-mean-square norm per head.
        implementation: of `ops.delta_rule`.
    """

    num_heads: Size | None = None
    expand_v: Repeats = 1
    kernel_size: Repeats = 4
    use_gate: bool = False
    norm_eps: Epsilon = 1e-5
    implementation: str | None = None

    @nn.nowrap
    def layout(self) -> tuple[int, int, int]:
        """Heads, key and value channels per head."""
        for name in ("expand_v", "kernel_size"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        default = 2 if self.d_model % 2 == 0 else 1
        heads, _, width = head_layout(self.d_model, default if self.num_heads is None else self.num_heads)
        return heads, width, width * self.expand_v

    def queries_and_keys(
        self, q: Float[Array, "B N H K"], k: Float[Array, "B N H K"]
    ) -> tuple[Float[Array, "B N H K"], Float[Array, "B N H K"]]:
        """What the rule reads and writes with, of the convolutions' outputs."""
        raise NotImplementedError(f"{type(self).__name__} does not define queries_and_keys")

    def gates(self, x: Float[Array, "B N D"]) -> tuple[Float[Array, "B N H"], Float[Array, "B N H"] | None]:
        """beta and the log-decay, in the state's dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not define gates")

    def per_head(self, x: Float[Array, "B N D"], name: str) -> Float[Array, "B N H"]:
        """One number per head, in the state's dtype."""
        heads, _, _ = self.layout()
        options: dict[str, Any] = {"dtype": self.dtype, "init_std": self.init_std}
        return Projection((heads,), ("embed", "heads"), name=name, **options)(x).astype(accumulation_dtype(x))

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
        heads, key_size, value_size = self.layout()
        context: dict[str, Any] = {"segment_ids": segment_ids, "mask": mask, "return_state": True}
        options: dict[str, Any] = {"dtype": self.dtype, "init_std": self.init_std}

        init = named(uniform(self.kernel_size**-0.5), None, "heads", "head_dim")
        projected, kernels = [], []
        for name, size in (("q", key_size), ("k", key_size), ("v", value_size)):
            project = Projection((heads, size), ("embed", "heads", "head_dim"), name=name, **options)
            projected.append(project(x))
            kernels.append(self.param(f"{name}_conv", init, (self.kernel_size, heads, size)))
        # One convolution of all channels; joined within heads, so that heads can be sharded.
        joined, kernel = jnp.concatenate(projected, -1), jnp.concatenate(kernels, -1)
        flat, conv = ops.short_conv(
            joined.reshape(*x.shape[:2], -1), kernel.reshape(self.kernel_size, -1),
            initial_state=None if state is None else state.conv, **context,
        )  # fmt: skip
        q, k, v = jnp.split(flat.reshape(joined.shape), [key_size, 2 * key_size], axis=-1)
        beta, log_decay = self.gates(x)
        # Unit keys must not be rounded to bfloat16: with beta = 2 the state would grow by their error.
        wide = accumulation_dtype(x)
        y, memory = ops.delta_rule(
            *self.queries_and_keys(q.astype(wide), k.astype(wide)), jax.nn.silu(v), beta, log_decay,
            initial_state=None if state is None else state.memory, implementation=self.implementation,
            **context,
        )  # fmt: skip

        scale = self.param("norm_scale", named(nn.initializers.ones_init(), "head_dim"), (value_size,))
        y = ops.rms_norm(y, scale, self.norm_eps)
        if self.use_gate:
            gate = Projection((heads, value_size), ("embed", "heads", "head_dim"), name="gate", **options)
            y = y * jax.nn.silu(gate(x))
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        y = Projection(
            (self.d_model,), ("heads", "head_dim", "embed"), inputs=2, dtype=self.dtype, init_std=out_std,
            name="out",
        )(y)  # fmt: skip
        return y, None if state is None else DeltaState(conv, memory)

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        heads, key_size, value_size = self.layout()
        dtype = self.dtype if dtype is None else dtype
        return DeltaState(
            conv=ops.init_short_conv_state(
                batch_size, heads * (2 * key_size + value_size), self.kernel_size, dtype
            ),
            memory=ops.init_linear_recurrence_state(
                batch_size, heads, key_size, value_size, jnp.promote_types(self.dtype, jnp.float32)
            ),
        )

    def state_size(self, length: int) -> int:
        """H d_k d_v (spec of Zoology 3.16); the convolutions' inputs are not counted."""
        heads, key_size, value_size = self.layout()
        return heads * key_size * value_size
