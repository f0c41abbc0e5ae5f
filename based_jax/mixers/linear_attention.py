"""Based's linear attention (Based, sections 4.1 and C), with any feature map of Zoology's study.

    q, k = x W_q, x W_k   (H heads of feature_dim channels);   v = x W_v   (H heads of d_model / H)
    y_i = sum_{j<=i} g_i gamma^(i-j) phi(q_i).phi(k_j) v_j / (sum_{j<=i} phi(q_i).phi(k_j) + eps)
    out = concat_heads(y) W_o

The map is by default the second-order Taylor one, phi(q).phi(k) = 1 + s + s^2 / 2 with
s = q.k / sqrt(feature_dim); the others are listed in `ops.feature_maps` (Zoology's code).
gamma and g are the optional decay of Appendix C: gamma_h = 1 - 2^(decay_const - h) is fixed per head, and
g = x W_dec + b_dec is a coarse input-dependent gate. The released models use neither.
"""

from typing import Any, ClassVar

from flax import linen as nn
from jax import lax
from jax import numpy as jnp

from based_jax import ops
from based_jax.fields import Epsilon, Positive, Share, Size, States
from based_jax.mixers.contract import Context, Mixer, head_layout, project, register
from based_jax.mixers.initializers import named, normal
from based_jax.ops import feature_maps
from based_jax.ops.core.kv_cache import expect_capacity
from based_jax.typing import Array, Float, Positions, State
from based_jax.validate import expect, expect_choice

DECAYS = ("none", "fixed", "gated")


@register("linear_attention")
class LinearAttention(Mixer):
    """Linear attention with a feature map (default: Taylor); without positions except cosformer's.

    Attributes:
        num_heads: heads H; default d_model / 64.
        head_dim: value channels per head; default d_model / num_heads, which then must be an integer.
        feature_dim: query/key channels per head (the paper's d').
        eps: added to the normaliser.
        decay: "none", "fixed" (gamma), or "gated" (gamma and the gate g).
        decay_const: exponent of gamma for head 0, below 0.
        feature_map: name of a map, such as one registered by `bj.feature_maps.register`; the normaliser of
            "identity" and "all_poly" may vanish.
        feature_scale: factor of queries and keys before the map; must be 1 for "cosformer", "performer"
            and "all_poly".
        feature_floor: lower bound of the features, for the maps in `feature_maps.FLOORED`.
        num_features: F of "performer" (default 256) and "all_poly" (default `feature_dim`).
        max_length: M of "cosformer", tokens of the longest document; None for the call's length, as in the
            authors' code, which takes whole rows only: no state, segments, padding or positions.
        rotary_fraction: share of the channels of queries and keys with rotary embeddings.
        rotary_base: base of the rotary wavelengths.
        learned_map: train the projections of "all_poly". Those of "performer" are never trained.
        implementation: passed to `ops.taylor_attention` and, for one token, `ops.taylor_step`; for other
            maps to `ops.linear_attention`.
    """

    num_heads: Size | None = None
    head_dim: Size | None = None
    feature_dim: States = 16
    eps: Epsilon = 1e-12
    decay: str = "none"
    decay_const: float = -3.0
    feature_map: str = "taylor"
    feature_scale: Positive = 1.0
    feature_floor: Epsilon = feature_maps.FLOOR
    num_features: Size | None = None
    max_length: Size | None = None
    rotary_fraction: Share = 0.0
    rotary_base: Positive = 10000.0
    learned_map: bool = True
    implementation: str | None = None

    projects_input: ClassVar[bool] = True

    @nn.nowrap
    def layout(self) -> tuple[int, int]:
        """Return the heads, and value channels per head."""
        if self.head_dim is not None and self.num_heads is not None:
            return self.num_heads, self.head_dim
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        return heads, self.head_dim or head_dim

    def setup(self) -> None:
        heads, head_dim = self.layout()
        expect_choice("decay", self.decay, DECAYS)
        shape = (self.feature_size, self.feature_dim)
        self.q, self.k = self.to_heads(heads, self.feature_dim), self.to_heads(heads, self.feature_dim)
        self.v = self.to_heads(heads, head_dim)
        self.out = self.to_output("heads", "head_dim")
        if self.decay == "gated":
            self.gate = self.linear(heads, "embed", "heads", bias=True)
        if self.feature_map == "performer":
            init = named(ops.orthogonal_features, None, "head_dim")
            self.random_features = self.param("random_features", init, shape)
        if self.feature_map == "all_poly":  # the authors' model overrides its options for initialisation
            init = named(normal(self.init_std), None, "head_dim")
            self.poly_linear = self.param("poly_linear", init, shape)
            self.poly_squares = self.param("poly_squares", init, shape)

    def mix(self, x: Float[Array, "B N D"], state: State, context: Context) -> tuple[Array, State]:
        heads, _ = self.layout()
        log_decay = None
        if self.decay != "none":
            log_decay = ops.fixed_log_decay(heads, self.decay_const)[None, None]
        q, k, v = project(x, self.q, self.k, self.v)
        rotary_dim = int(self.rotary_fraction * self.feature_dim)
        rotary_dim -= rotary_dim % 2 and rotary_dim == self.feature_dim  # the last channel has no partner
        if rotary_dim:
            rotate: dict[str, Any] = {"dim": rotary_dim, "base": self.rotary_base}
            q, k = (ops.rotary(features, context.positions, **rotate) for features in (q, k))
        options: dict[str, Any] = {"eps": self.eps, "implementation": self.implementation}
        is_taylor = self.feature_map == "taylor"
        if self.feature_scale != 1:
            q, k = self.feature_scale * q, self.feature_scale * k
        if is_taylor and context.is_plain_step and log_decay is None:
            y, state = ops.taylor_step(q[:, 0], k[:, 0], v[:, 0], state, **options)
            y = y[:, None]
        else:
            if self.feature_map == "cosformer":
                positions = self._cosformer_positions(x.shape[1], state, context)
                horizon = self.max_length or x.shape[1]
                q, k = (ops.cosformer_features(features, positions, horizon) for features in (q, k))
            options |= {"initial_state": state, "log_decay": log_decay}
            if is_taylor:
                y, state = context.run(ops.taylor_attention, q, k, v, **options)
            else:
                y, state = context.run(ops.linear_attention, q, k, v, feature_map=self.phi(), **options)
        if self.decay == "gated":
            y = y * self.gate(x)[..., None]
        return self.out(y), state

    def phi(self) -> ops.FeatureMap:
        """Return the feature map of a bound module; cosformer's position map is applied before it."""
        if self.feature_map == "cosformer":
            return ops.IDENTITY
        if self.feature_map == "performer":
            return ops.performer_map(lax.stop_gradient(self.random_features))
        if self.feature_map == "all_poly":
            weights = self.poly_linear, self.poly_squares
            return ops.all_poly_map(*(weights if self.learned_map else lax.stop_gradient(weights)))
        return ops.feature_map(self.feature_map, self.feature_floor)

    def _cosformer_positions(self, length: int, state: State, context: Context) -> Positions:
        positions = context.positions if context.has_positions else None
        given = {"state": state, "segment_ids": context.segment_ids, "positions": positions}
        if self.max_length is None:
            for name, value in (given | {"mask": context.mask}).items():
                self._expect_max_length(value is None, name)
        elif all(value is None for value in given.values()):
            limit = f"max_length = {self.max_length} tokens, cosformer's longest text"
            expect_capacity(None, length, context.mask, self.max_length, limit)
        # Padding may lie after the longest text; its NaN would reach every token.
        return context.positions if context.mask is None else jnp.where(context.mask, context.positions, 0)

    def _expect_max_length(self, condition: bool, name: str) -> None:
        expected = f"a number of tokens where feature_map = 'cosformer' has {name}"
        expect(condition, "max_length", None, expected)

    @property
    def feature_size(self) -> int:
        """F, features of a query or key."""
        name, width, count = self.feature_map, self.feature_dim, self.num_features
        expect_choice("feature_map", name, (*feature_maps.names(), *feature_maps.PARAMETRIC))
        is_allowed = self.learned_map or name == "all_poly"
        expect(is_allowed, "learned_map", False, f"True for feature_map = {name!r}")
        is_plain = name not in feature_maps.PARAMETRIC
        expect(is_plain or self.feature_scale == 1, "feature_scale", self.feature_scale, f"1 for {name!r}")
        has_floor = name in feature_maps.FLOORED or self.feature_floor == feature_maps.FLOOR
        expect(has_floor, "feature_floor", self.feature_floor, f"{feature_maps.FLOOR} for {name!r}")
        if name in ("performer", "all_poly"):
            return count or (256 if name == "performer" else width)
        expected = f"None for feature_map = {name!r}, whose number is fixed"
        expect(count is None, "num_features", count, expected)
        if name == "cosformer":
            return 2 * width
        expect(self.max_length is None, "max_length", self.max_length, f"None for feature_map = {name!r}")
        return ops.feature_map(name).size(width)

    def empty_state(self, batch_size: int, max_length: int | None, dtype: Any) -> State:
        heads, head_dim = self.layout()
        self._expect_max_length(self.feature_map != "cosformer" or self.max_length is not None, "a state")
        return ops.init_linear_attention_state(batch_size, heads, self.feature_size, head_dim, self.wide)

    def state_size(self, length: int) -> int:
        """Return (d + 1) F per head, F = 1 + 3 d'/2 + d'^2/2 for Taylor's map (Based, appendix E.2).

        Performer's map counts as d' features, whatever `num_features` is, as in Zoology's code.
        """
        heads, head_dim = self.layout()
        size = self.feature_dim if self.feature_map == "performer" else self.feature_size
        return heads * (head_dim + 1) * size
