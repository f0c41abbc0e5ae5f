"""Base class of DeltaNet and Gated DeltaNet: projections, convolutions, delta rule, output norm."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Factor, Repeats, Size
from based_jax.mixers.contract import Context, Mixer
from based_jax.mixers.initializers import named, ones, uniform
from based_jax.typing import Array, Float, State
from based_jax.validate import expect_divisible


class DeltaState(NamedTuple):
    """The convolutions' last inputs (q, k, v of head 0, then of head 1, ...), and the matrix per head."""

    conv: ops.ShortConvState | None
    memory: ops.LinearRecurrenceState


class DeltaHeads(Mixer):
    """Heads with the delta rule; subclasses define the normalisation of the keys and the gates.

    Attributes:
        num_heads: heads H; default 2 (Zoology), 1 if d_model is odd.
        num_v_heads: heads of the values, gates and state, a multiple of num_heads: neighbouring heads share a
            query and a key; default num_heads.
        expand_k, expand_v: total key and value channels over d_model, rounded.
        kernel_size: taps of the short convolutions of q, k and v; None for no convolutions.
        allow_neg_eigval: beta up to 2 rather than 1: the state's transition can have eigenvalue -1.
        use_gate: gate the normed output with silu(x W_g).
        norm_eps: epsilon of the output's root-mean-square norm per head.
        implementation: passed to `ops.delta_rule`.
    """

    num_heads: Size | None = None
    num_v_heads: Size | None = None
    expand_k: Factor = 1.0
    expand_v: Factor = 1.0
    kernel_size: Repeats | None = 4
    allow_neg_eigval: bool = False
    use_gate: bool = False
    norm_eps: Epsilon = 1e-5
    implementation: str | None = None

    @nn.nowrap
    def layout(self) -> tuple[int, int, int]:
        """Return the heads of queries and keys, key and value channels per head."""
        default = 2 if self.d_model % 2 == 0 else 1
        heads = default if self.num_heads is None else self.num_heads
        sizes = [max(round(factor * self.d_model), 1) for factor in (self.expand_k, self.expand_v)]
        expect_divisible("expand_k * d_model", sizes[0], "num_heads", heads)
        if self.num_v_heads is None:
            expect_divisible("expand_v * d_model", sizes[1], "num_heads", heads)
        else:
            expect_divisible("num_v_heads", self.num_v_heads, "num_heads", heads)
            expect_divisible("expand_v * d_model", sizes[1], "num_v_heads", self.num_v_heads)
        return heads, sizes[0] // heads, sizes[1] // (self.num_v_heads or heads)

    @property
    def v_heads(self) -> int:
        """Heads of values, gates and state."""
        return self.num_v_heads or self.layout()[0]

    def queries_and_keys(
        self, q: Float[Array, "B N H K"], k: Float[Array, "B N H K"]
    ) -> tuple[Float[Array, "B N H K"], Float[Array, "B N H K"]]:
        """Normalise the convolutions' outputs to the queries and keys of the delta rule."""
        raise NotImplementedError(f"{type(self).__name__} does not define queries_and_keys")

    def gates(self, x: Float[Array, "B N D"]) -> tuple[Float[Array, "B N H"], Float[Array, "B N H"] | None]:
        """Return beta in [0, 1] and the log-decay for each of the `v_heads`, in the state's dtype."""
        raise NotImplementedError(f"{type(self).__name__} does not define gates")

    @nn.nowrap
    def per_head(self, x: Float[Array, "B N D"], name: str) -> Float[Array, "B N H"]:
        """Map to one number per head, in the state's dtype."""
        return self.linear(self.v_heads, "embed", "heads", name=name)(x).astype(self.wide)

    @nn.compact
    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        heads, key_size, value_size = self.layout()
        shapes = {"q": (heads, key_size), "k": (heads, key_size), "v": (self.v_heads, value_size)}
        qkv, conv = [self.to_heads(*shape, name=name)(x) for name, shape in shapes.items()], None
        if self.kernel_size is not None:
            qkv, conv = self._convolve(qkv, self.kernel_size, state and state.conv, context)
        q, k, v = qkv
        # Do not round unit keys to bfloat16: with beta = 2 their error would make the state grow.
        q, k = self.queries_and_keys(q.astype(self.wide), k.astype(self.wide))
        if (shared := self.v_heads // heads) > 1:
            q, k = (jnp.repeat(a, shared, axis=2) for a in (q, k))
        beta, log_decay = self.gates(x)
        beta = 2 * beta if self.allow_neg_eigval else beta
        options = {"initial_state": state and state.memory, "implementation": self.implementation}
        y, memory = context.run(ops.delta_rule, q, k, jax.nn.silu(v), beta, log_decay, **options)

        y = ops.rms_norm(y, self.param("norm_scale", ones("head_dim"), (value_size,)), self.norm_eps)
        if self.use_gate:
            y = y * jax.nn.silu(self.to_heads(self.v_heads, value_size, name="gate")(x))
        return self.to_output("heads", "head_dim", name="out")(y), DeltaState(conv, memory)

    @nn.nowrap
    def _convolve(
        self, qkv: list[Array], taps: int, state: State, context: Context
    ) -> tuple[list[Array], State]:
        """Convolve q, k and v in one call."""
        init = named(uniform(taps**-0.5), None, "heads", "head_dim")
        kernels = [
            self.param(f"{name}_conv", init, (taps, *x.shape[2:])) for name, x in zip("qkv", qkv, strict=True)
        ]
        # Concatenate the channels within each head, so that heads can be sharded.
        heads = qkv[0].shape[2]
        grouped = [x.reshape(*x.shape[:2], heads, -1) for x in qkv]
        joined = jnp.concatenate(grouped, -1)
        kernel = jnp.concatenate([kernel.reshape(taps, heads, -1) for kernel in kernels], -1)
        flat, kernel = joined.reshape(*joined.shape[:2], -1), kernel.reshape(taps, -1)
        flat, conv = context.run(ops.short_conv, flat, kernel, initial_state=state)
        key_size = grouped[0].shape[-1]
        parts = jnp.split(flat.reshape(joined.shape), [key_size, 2 * key_size], axis=-1)
        return [part.reshape(x.shape) for part, x in zip(parts, qkv, strict=True)], conv

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, key_size, value_size = self.layout()
        conv = None
        if self.kernel_size is not None:
            channels = 2 * heads * key_size + self.v_heads * value_size
            conv = ops.init_short_conv_state(batch_size, channels, self.kernel_size, dtype)
        memory = ops.init_linear_recurrence_state(batch_size, self.v_heads, key_size, value_size, self.wide)
        return DeltaState(conv, memory)

    def state_size(self, length: int) -> int:
        """Return H d_k d_v (Zoology's code); the convolutions' inputs are not counted."""
        _, key_size, value_size = self.layout()
        return self.v_heads * key_size * value_size
