"""What full and sliding-window attention share: projections, rotary positions, grouped heads, the cache."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from based_jax import ops
from based_jax.fields import Positive, Share, Size
from based_jax.mixers.contract import Mixer, Projection, head_layout
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect


class SoftmaxHeads(Mixer):
    """Multi-head causal softmax attention over the keys that `reach` allows.

    Attributes:
        num_heads: query heads; default d_model / 64.
        num_kv_heads: key/value heads, a divisor of num_heads (grouped- or multi-query attention).
        rotary_fraction: share of each head's channels that rotary embeddings turn; 0 for none.
        rotary_base: base of the rotary wavelengths.
        rotary_interleaved: pair neighbouring channels instead of halves.
        qkv_bias, out_bias: biases of the projections.
        implementation: of `ops.softmax_attention`.
        step_implementation: of `ops.window_step`, which decodes token by token in a window.
    """

    num_heads: Size | None = None
    num_kv_heads: Size | None = None
    rotary_fraction: Share = 1.0
    rotary_base: Positive = 10000.0
    rotary_interleaved: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    implementation: str | None = None
    step_implementation: str | None = None

    @property
    def reach(self) -> int | None:
        """Number of past keys that a query sees; None is all."""
        raise NotImplementedError(f"{type(self).__name__} does not define reach")

    @property
    def rotary_dim(self) -> int:
        """Channels per head whose frequencies are used (an odd number turns one more, see `ops.rotary`)."""
        _, _, head_dim = head_layout(self.d_model, self.num_heads)
        expect(0 <= self.rotary_fraction <= 1, "rotary_fraction", self.rotary_fraction, "0 to 1")
        dim = int(self.rotary_fraction * head_dim)
        return dim - 1 if dim % 2 and dim == head_dim else dim

    def setup(self) -> None:
        heads, kv_heads, head_dim = head_layout(self.d_model, self.num_heads, self.num_kv_heads)
        options: dict[str, Any] = {"bias": self.qkv_bias, "dtype": self.dtype, "init_std": self.init_std}
        self.q = Projection((heads, head_dim), ("embed", "heads", "head_dim"), **options)
        self.k = Projection((kv_heads, head_dim), ("embed", "kv_heads", "head_dim"), **options)
        self.v = Projection((kv_heads, head_dim), ("embed", "kv_heads", "head_dim"), **options)
        self.out = Projection(
            (self.d_model,),
            ("heads", "head_dim", "embed"),
            bias=self.out_bias,
            inputs=2,
            dtype=self.dtype,
            init_std=self.init_std if self.out_init_std is None else self.out_init_std,
        )

    def __call__(
        self,
        x: Float[Array, "B N D"],
        state: State | None = None,
        *,
        segment_ids: SegmentIds | None = None,
        positions: Positions | None = None,
        mask: Mask | None = None,
        allowed: Callable[[Array, Array], Array] | None = None,
    ) -> tuple[Float[Array, "B N D"], State | None]:
        """As every mixer; `allowed`, where `reach` is None, is as of `ops.softmax_attention`."""
        x = self.check_input(x)
        q, k, v = self.q(x), self.k(x), self.v(x)
        is_plain_step = x.shape[1] == 1 and segment_ids is None and mask is None
        if state is not None and self.reach is not None and is_plain_step:
            y, state = ops.window_step(
                q[:, 0], k[:, 0], v[:, 0], state,
                positions=None if positions is None else jnp.broadcast_to(positions[:, 0], x.shape[:1]),
                rotary_dim=self.rotary_dim or None,
                rotary_base=self.rotary_base,
                rotary_interleaved=self.rotary_interleaved,
                implementation=self.step_implementation,
            )  # fmt: skip
            return self.out(y[:, None]), state
        q, k = self.turned(q, k, state, segment_ids, positions, mask)
        options: dict[str, Any] = {
            "segment_ids": segment_ids,
            "mask": mask,
            "allowed": allowed,
            "implementation": self.implementation,
        }
        if state is None:
            y = ops.softmax_attention(q, k, v, left=self.reach, **options)
        else:
            y, state = ops.softmax_attention(
                q, k, v, left=self.reach, initial_state=state, return_state=True, **options
            )
        return self.out(y), state

    def turned(
        self,
        q: Array,
        k: Array,
        state: State | None,
        segment_ids: SegmentIds | None,
        positions: Positions | None,
        mask: Mask | None,
    ) -> tuple[Array, Array]:
        """Queries and keys with their rotary embeddings, if there are any."""
        if not self.rotary_dim:
            return q, k
        if positions is None:
            stream = None if state is None else state.stream
            positions = ops.advance(stream, q.shape[0], q.shape[1], segment_ids, mask)[0].positions
        options: dict[str, Any] = {
            "dim": self.rotary_dim,
            "base": self.rotary_base,
            "interleaved": self.rotary_interleaved,
        }
        return ops.rotary(q, positions, **options), ops.rotary(k, positions, **options)

    def equal_heads(
        self,
        x: Float[Array, "B N D"],
        state: State | None,
        segment_ids: SegmentIds | None,
        positions: Positions | None,
        mask: Mask | None,
    ) -> tuple[Array, Array, Array]:
        """Queries, keys and values with as many heads each, for mixers with a form that is not causal.

        Raises:
            ValueError: a state, segments or padding beside that form.
        """
        x = self.check_input(x)
        if not self.causal:
            expect_whole_rows("causal = False", state=state, segment_ids=segment_ids, mask=mask)
        q, k = self.turned(self.q(x), self.k(x), state, segment_ids, positions, mask)
        k, v = (jnp.repeat(heads, q.shape[2] // heads.shape[2], axis=2) for heads in (k, self.v(x)))
        return q, k, v

    def expect_causal(self) -> None:
        """Check that the mixer's form has a state."""
        expect(self.causal, "causal", self.causal, "True for a state: the other form looks at whole rows")

    def full_cache(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        """An empty cache of all tokens that a row will ever have."""
        return self.cache(batch_size, expect_max_length(max_length), dtype)

    def cache(self, batch_size: int, slots: int, dtype: Any) -> State:
        """An empty cache of `slots` tokens in `dtype` (default: the computation's)."""
        _, kv_heads, head_dim = head_layout(self.d_model, self.num_heads, self.num_kv_heads)
        dtype = jnp.dtype(self.dtype if dtype is None else dtype)
        return ops.init_kv_cache(batch_size, slots, kv_heads, head_dim, head_dim, dtype)

    def cached_floats(self, tokens: int) -> int:
        """Keys and values of `tokens` tokens."""
        _, kv_heads, head_dim = head_layout(self.d_model, self.num_heads, self.num_kv_heads)
        return 2 * kv_heads * head_dim * tokens


def expect_max_length(max_length: int | None) -> int:
    """Check that `init_state` was told how far a growing state may grow.

    Raises:
        ValueError: it was not, or less than a token.
    """
    known = max_length is not None and max_length >= 1
    expect(
        known, "max_length", max_length, "the number of tokens that the state must hold: it grows with them"
    )
    return max_length or 0


def expect_whole_rows(form: str, **context: Any) -> None:
    """Check that a form which looks at whole rows, later tokens included, was given nothing but rows.

    Raises:
        ValueError: the first argument that is not None, named.
    """
    for name, value in context.items():
        expect(value is None, name, type(value).__name__, f"None with {form}, which looks at whole rows")
