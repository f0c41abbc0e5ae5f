"""Base classes of softmax attention: projections, rotary positions, grouped heads, the KV cache."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from based_jax import ops
from based_jax.fields import Epsilon, Positive, Share, Size
from based_jax.mixers.contract import Context, Mixer, default_heads, head_layout, project
from based_jax.mixers.initializers import ones
from based_jax.ops.attention_to_keys import attend, visible_keys
from based_jax.ops.cudnn_attention import padded_width
from based_jax.typing import Array, Float, State
from based_jax.validate import expect, expect_choice


class SoftmaxHeads(Mixer):
    """Multi-head causal softmax attention over the keys that `reach` allows.

    Attributes:
        num_heads: query heads; None is d_model / 64.
        num_kv_heads: key/value heads, a divisor of num_heads (grouped- or multi-query attention).
        rotary_fraction: share of each head's channels with rotary embeddings; 0 for none.
        rotary_base: base of the rotary wavelengths.
        rotary_interleaved: pair neighbouring channels instead of halves.
        qkv_bias, out_bias: add biases in the input projections, and in the output projection.
        implementation: passed to `ops.softmax_attention`.
    """

    num_heads: Size | None = None
    num_kv_heads: Size | None = None
    rotary_fraction: Share = 1.0
    rotary_base: Positive = 10000.0
    rotary_interleaved: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    implementation: str | None = None

    @property
    def reach(self) -> int | None:
        """Number of past keys that a query sees (the option `left` of mixers that have it); None for all."""
        return getattr(self, "left", None)

    @property
    def layout(self) -> tuple[int, int, int]:
        """Query heads, key/value heads and channels per head."""
        return head_layout(self.d_model, self.num_heads, self.num_kv_heads)

    @property
    def factor(self) -> float | None:
        """Factor of the scores; None for 1 / sqrt(channels per head)."""
        return None

    @property
    def rotary_dim(self) -> int:
        """Channels per head whose frequencies are used (an odd number rotates one more, see `ops.rotary`)."""
        _, _, head_dim = self.layout
        dim = int(self.rotary_fraction * head_dim)
        return dim - 1 if dim % 2 and dim == head_dim else dim

    def setup(self) -> None:
        heads, kv_heads, head_dim = self.layout
        self.q = self.to_heads(heads, head_dim, bias=self.qkv_bias)
        axes = ("embed", "kv_heads", "head_dim")
        self.k, self.v = (self.linear((kv_heads, head_dim), *axes, bias=self.qkv_bias) for _ in range(2))
        self.out = self.to_output("heads", "head_dim", bias=self.out_bias)

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        return self.attend(x, state, context)

    @nn.nowrap
    def attend(
        self,
        x: Float[Array, "B N D"],
        state: State,
        context: Context,
        op: Callable[..., Any] = ops.softmax_attention,
        **options: Any,
    ) -> tuple[Array, State]:
        """Attend by `op` with the mixer's options, or these instead; return outputs and the next state."""
        q, k, v = project(x, self.q, self.k, self.v)
        q, k = self.rotated(q, k, context)
        usual = {"left": self.reach, "scale": self.factor, "implementation": self.implementation}
        y, state = context.run(op, q, k, v, initial_state=state, **(usual | options))
        return self.read_out(y, x), state

    def read_out(self, y: Float[Array, "B N H V"], x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Project the heads to d_model; `x` has the mixer's inputs."""
        return self.out(y)

    def rotated(self, q: Array, k: Array, context: Context) -> tuple[Array, Array]:
        """Return the queries and keys with their rotary embeddings, if there are any."""
        if not self.rotary_dim:
            return q, k
        options: dict[str, Any] = {"base": self.rotary_base, "interleaved": self.rotary_interleaved}
        options["frequencies"] = getattr(self, "rotary_frequencies", None)
        rotate = functools.partial(ops.rotary, dim=self.rotary_dim, **options)
        return rotate(q, context.positions), rotate(k, context.positions)

    def equal_heads(
        self, x: Float[Array, "B N D"], state: State, context: Context
    ) -> tuple[Array, Array, Array]:
        """Return queries, keys and values with equally many heads, for mixers with a non-causal form.

        Raises:
            ValueError: a state, segments or padding with the non-causal form.
        """
        if not self.causal:
            inside = {"segment_ids": context.segment_ids, "mask": context.mask}
            expect_whole_rows("causal = False", state=state, **inside)
        q, k = self.rotated(self.q(x), self.k(x), context)
        k, v = (jnp.repeat(heads, q.shape[2] // heads.shape[2], axis=2) for heads in (k, self.v(x)))
        return q, k, v

    def expect_causal(self) -> None:
        """Check that the mixer's form has a state."""
        expect(self.causal, "causal", self.causal, "True for a state: the other form reads whole rows")

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        slots = expect_max_length(max_length) if self.reach is None else self.reach + 1
        _, kv_heads, width = self.layout
        if self.implementation == "cudnn" and self.reach is None:
            width = padded_width(width)  # or it would pad the whole cache for every token
        return ops.init_kv_cache(batch_size, slots, kv_heads, width, width, dtype)

    def state_size(self, length: int) -> int:
        """Return 2 d min(N, w) with a window of w keys, 2 d N without (Based, appendix E.2)."""
        _, kv_heads, head_dim = self.layout
        return 2 * kv_heads * head_dim * (length if self.reach is None else min(length, self.reach + 1))


class SoftmaxAttention(SoftmaxHeads):
    """Softmax attention with the options of the authors' attention classes.

    Attributes:
        head_dim: channels per head; default d_model / num_heads, which then must be an integer.
        scale: factor of the scores; default 1 / sqrt(channels per head).
        rotary_frequencies: of each pair of rotated channels, in radians per position; default: from
            rotary_base.
        qk_norm: RMS norms with learned scales before the rotation: True over the channels of each query and
            key, "all" over those of all heads together (as in OLMo 2).
        qk_norm_eps: epsilon of these norms.
        use_gate: multiply the heads by sigmoid(x W_g) before the output projection (Qiu et al. 2025,
            "Gated Attention for Large Language Models", section 2.2).
        dropout: dropout rate of the attention weights, in stateless calls with a "dropout" rng.
    """

    head_dim: Size | None = None
    scale: Positive | None = None
    rotary_frequencies: tuple[Positive, ...] | None = None
    qk_norm: bool | str = False
    qk_norm_eps: Epsilon = 1e-6
    use_gate: bool = False
    dropout: Share = 0.0

    projects_input: ClassVar[bool] = True

    def setup(self) -> None:
        super().setup()
        heads, kv_heads, width = self.layout
        if self.use_gate:
            self.gate = self.to_heads(heads, width, bias=self.qkv_bias)
        expect_choice("qk_norm", self.qk_norm, (False, True, "all"))
        if self.qk_norm == "all":
            scale = ones("heads", "head_dim")
            self.q_norm = self.param("q_norm", scale, (heads, width))
            self.k_norm = self.param("k_norm", scale, (kv_heads, width))
        elif self.qk_norm:
            self.q_norm, self.k_norm = (self.param(f"{x}_norm", ones("head_dim"), (width,)) for x in "qk")

    @property
    def is_pure(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether outputs depend on parameters and inputs alone: no dropout."""
        return self.dropout == 0

    @property
    def layout(self) -> tuple[int, int, int]:
        if self.head_dim is None:
            return head_layout(self.d_model, self.num_heads, self.num_kv_heads)
        heads = default_heads(self.d_model) if self.num_heads is None else self.num_heads
        return head_layout(heads * self.head_dim, heads, self.num_kv_heads)

    @property
    def factor(self) -> float | None:
        return self.scale

    def rotated(self, q: Array, k: Array, context: Context) -> tuple[Array, Array]:
        if self.qk_norm:
            q = _head_norm(q, self.q_norm, self.qk_norm_eps)
            k = _head_norm(k, self.k_norm, self.qk_norm_eps)
        return super().rotated(q, k, context)

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        if not self.dropout or context.has_state or not self.has_rng("dropout"):
            return self.attend(x, state, context)
        q, k = self.rotated(self.q(x), self.k(x), context)
        options: dict[str, Any] = {"left": self.reach, "scale": self.scale, "rate": self.dropout}
        y = dropped_attention(q, k, self.v(x), context, **options, key=self.make_rng("dropout"))
        return self.read_out(y, x), None

    def read_out(self, y: Float[Array, "B N H V"], x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        return self.out(y * jax.nn.sigmoid(self.gate(x)) if self.use_gate else y)


def _head_norm(x: Float[Array, "B N H K"], scale: Array, eps: float) -> Float[Array, "B N H K"]:
    """Return the RMS norm over each head, or over all heads if the scale has an axis of them."""
    if scale.ndim == 1:
        return ops.rms_norm(x, scale, eps)
    return ops.rms_norm(x.reshape(*x.shape[:2], -1), scale.reshape(-1), eps).reshape(x.shape)


def dropped_attention(
    q: Float[Array, "B N H K"],
    k: Float[Array, "B N G K"],
    v: Float[Array, "B N G V"],
    context: Context,
    *,
    left: int | None,
    scale: float | None,
    rate: float,
    key: Array,
) -> Float[Array, "B N H V"]:
    """Attend causally to the tokens of a call without a state, with torch's dropout of the weights.

    A weight is zeroed with probability `rate` and otherwise divided by 1 - rate, so that a row of weights no
    longer sums to one. All N^2 weights of a head are in memory at once.
    """
    index, start, mask = context.token_positions
    visible = visible_keys(index, jnp.broadcast_to(start, (start.shape[0], q.shape[1])), index, left)
    visible = visible if mask is None else visible & mask[:, None, :]

    def drop(weights: Array) -> Array:
        kept = jax.random.bernoulli(key, 1 - rate, weights.shape)
        return jnp.where(kept, weights / (1 - rate or 1.0), 0)

    return attend(q, k, v, visible, q.shape[-1] ** -0.5 if scale is None else scale, drop)[0]


def expect_max_length(max_length: int | None) -> int:
    """Check that `init_state` was given the capacity of a growing state.

    Raises:
        ValueError: `max_length` is None or below 1.
    """
    known = max_length is not None and max_length >= 1
    expected = "the number of tokens that the state must hold: it grows with them"
    expect(known, "max_length", max_length, expected)
    return max_length or 0


def expect_whole_rows(form: str, **context: Any) -> None:
    """Check that a form that reads whole rows, later tokens included, got no state, segments or padding.

    Raises:
        ValueError: names the first argument that is not None.
    """
    for name, value in context.items():
        expect(value is None, name, type(value).__name__, f"None with {form}, which reads whole rows")
