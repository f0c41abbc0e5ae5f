"""What DeltaNet and Gated DeltaNet share: projections, convolutions, the delta rule, the output's norm."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Factor, Repeats, Size
from based_jax.mixers.context import Context
from based_jax.mixers.contract import Mixer, named, ones, uniform
from based_jax.typing import Array, Float, State
from based_jax.validate import expect_divisible


class DeltaState(NamedTuple):
    """The convolutions' last inputs (q, k, v of head 0, then of head 1, ...), and the matrix per head."""

    conv: ops.ShortConvState
    memory: ops.LinearRecurrenceState


class DeltaHeads(Mixer):
    """Heads with the delta rule; subclasses say how keys are normalised and what the gates are.

    Attributes:
        num_heads: heads H; default 2 (Zoology), 1 if d_model is odd.
        expand_k, expand_v: key and value channels of all heads together over d_model, rounded.
        kernel_size: taps of the short convolutions of q, k and v.
        use_gate: gate the normed output with silu(x W_g).
        norm_eps: of the output's root-mean-square norm per head.
        implementation: of `ops.delta_rule`.
    """

    num_heads: Size | None = None
    expand_k: Factor = 1.0
    expand_v: Factor = 1.0
    kernel_size: Repeats = 4
    use_gate: bool = False
    norm_eps: Epsilon = 1e-5
    implementation: str | None = None

    @nn.nowrap
    def layout(self) -> tuple[int, int, int]:
        """Heads, key and value channels per head."""
        default = 2 if self.d_model % 2 == 0 else 1
        heads = default if self.num_heads is None else self.num_heads
        sizes = [max(round(factor * self.d_model), 1) for factor in (self.expand_k, self.expand_v)]
        for name, size in zip("kv", sizes, strict=True):
            expect_divisible(f"expand_{name} * d_model", size, "num_heads", heads)
        key_size, value_size = (size // heads for size in sizes)
        return heads, key_size, value_size

    def queries_and_keys(
        self, q: Float[Array, "B N H K"], k: Float[Array, "B N H K"]
    ) -> tuple[Float[Array, "B N H K"], Float[Array, "B N H K"]]:
        """What the rule reads and writes with, of the convolutions' outputs."""
        raise NotImplementedError(f"{type(self).__name__} does not define queries_and_keys")

    def gates(self, x: Float[Array, "B N D"]) -> tuple[Float[Array, "B N H"], Float[Array, "B N H"] | None]:
        """beta and the log-decay, in the state's dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not define gates")

    @nn.nowrap
    def per_head(self, x: Float[Array, "B N D"], name: str) -> Float[Array, "B N H"]:
        """One number per head, in the state's dtype."""
        return self.linear(self.layout()[0], "embed", "heads", name=name)(x).astype(self.wide)

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        heads, key_size, value_size = self.layout()
        init = named(uniform(self.kernel_size**-0.5), None, "heads", "head_dim")
        sizes, taps = {"q": key_size, "k": key_size, "v": value_size}, self.kernel_size
        projected = [self.to_heads(heads, size, name=name)(x) for name, size in sizes.items()]
        kernels = [self.param(f"{name}_conv", init, (taps, heads, size)) for name, size in sizes.items()]
        # One convolution of all channels; joined within heads, so that heads can be sharded.
        joined, kernel = jnp.concatenate(projected, -1), jnp.concatenate(kernels, -1)
        flat, kernel = joined.reshape(*x.shape[:2], -1), kernel.reshape(taps, -1)
        flat, conv = context.run(ops.short_conv, flat, kernel, initial_state=state and state.conv)
        q, k, v = jnp.split(flat.reshape(joined.shape), [key_size, 2 * key_size], axis=-1)
        # Unit keys must not be rounded to bfloat16: with beta = 2 the state would grow by their error.
        q, k = self.queries_and_keys(q.astype(self.wide), k.astype(self.wide))
        beta, log_decay = self.gates(x)
        options = {"initial_state": state and state.memory, "implementation": self.implementation}
        y, memory = context.run(ops.delta_rule, q, k, jax.nn.silu(v), beta, log_decay, **options)

        y = ops.rms_norm(y, self.param("norm_scale", ones("head_dim"), (value_size,)), self.norm_eps)
        if self.use_gate:
            y = y * jax.nn.silu(self.to_heads(heads, value_size, name="gate")(x))
        return self.to_output("heads", "head_dim", name="out")(y), DeltaState(conv, memory)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, key_size, value_size = self.layout()
        channels = heads * (2 * key_size + value_size)
        return DeltaState(
            conv=ops.init_short_conv_state(batch_size, channels, self.kernel_size, dtype),
            memory=ops.init_linear_recurrence_state(batch_size, heads, key_size, value_size, self.wide),
        )

    def state_size(self, length: int) -> int:
        """H d_k d_v (Zoology's code); the convolutions' inputs are not counted."""
        heads, key_size, value_size = self.layout()
        return heads * key_size * value_size
