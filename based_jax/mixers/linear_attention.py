"""Based's linear attention (Based, sections 4.1 and C), with any feature map of Zoology's study.

    q, k = x W_q, x W_k   (H heads of feature_dim channels);   v = x W_v   (H heads of d_model / H)
    y_i = sum_{j<=i} g_i gamma^(i-j) phi(q_i).phi(k_j) v_j / (sum_{j<=i} phi(q_i).phi(k_j) + eps)
    out = concat_heads(y) W_o

The map is by default the second-order Taylor one, phi(q).phi(k) = 1 + s + s^2 / 2 with
s = q.k / sqrt(feature_dim); the others are listed in `ops.feature_maps` (Zoology's code).
gamma and g are Appendix C's optional decay: gamma_h = 1 - 2^(decay_const - h) fixed per head, and the
coarse input-dependent gate g = x W_dec + b_dec. The released models run without either.
"""

import functools
from typing import Any, ClassVar

from flax import linen as nn
from jax import lax
from jax import numpy as jnp

from based_jax import ops
from based_jax.fields import Epsilon, Size, States
from based_jax.mixers.contract import Card, Mixer, Projection, head_layout, named
from based_jax.ops.ring import expect_room
from based_jax.typing import Array, Float, Mask, Positions, SegmentIds, State
from based_jax.validate import expect, expect_choice

DECAYS = ("none", "fixed", "gated")
FEATURE_MAPS = (*ops.FEATURE_MAPS, "cosformer", "performer", "all_poly")


class LinearAttention(Mixer):
    """Linear attention with a feature map, Taylor's by default; no positions (but cosformer's).

    Attributes:
        num_heads: heads H; default d_model / 64.
        feature_dim: query/key channels per head (the paper's d').
        eps: added to the normaliser.
        decay: "none", "fixed" (gamma), or "gated" (gamma and the gate g).
        decay_const: exponent of gamma for head 0.
        feature_map: name of the map; the normaliser of "identity" and "all_poly" may vanish.
        num_features: F of "performer" (default 256) and "all_poly" (default `feature_dim`).
        max_length: M of "cosformer", tokens of the longest document; None is the call's own length, as in the
            authors' code, and takes whole rows only: no state, segments, padding or positions.
        learned_map: whether the projections of "all_poly" are trained. Those of "performer" never are.
        implementation: of `ops.taylor_attention` and, for one token, `ops.taylor_step`; of
            `ops.linear_attention` for other maps.
    """

    card: ClassVar[Card] = Card(
        equation="sum_j p_ij v_j / sum_j p_ij, p_ij = phi(q_i).phi(k_j); Taylor: p = 1 + s + s^2/2",
        training="N F D",
        state="F (D + H), F = 1 + 3d'/2 + d'^2/2 of Taylor's map",
        decoding="F D",
        source="Based, section 4.1 and figure 3",
        parity=("based/linear_attention_taylor", "feature_maps"),
    )

    num_heads: Size | None = None
    feature_dim: States = 16
    eps: Epsilon = 1e-12
    decay: str = "none"
    decay_const: float = -3.0
    feature_map: str = "taylor"
    num_features: Size | None = None
    max_length: Size | None = None
    learned_map: bool = True
    implementation: str | None = None

    def setup(self) -> None:
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        expect_choice("decay", self.decay, DECAYS)
        size = self.feature_size
        options: dict[str, Any] = {"dtype": self.dtype, "init_std": self.init_std}
        axes = ("embed", "heads", "head_dim")
        self.q = Projection((heads, self.feature_dim), axes, **options)
        self.k = Projection((heads, self.feature_dim), axes, **options)
        self.v = Projection((heads, head_dim), axes, **options)
        out_std = self.init_std if self.out_init_std is None else self.out_init_std
        self.out = Projection(
            (self.d_model,), ("heads", "head_dim", "embed"), inputs=2, dtype=self.dtype, init_std=out_std
        )
        if self.decay == "gated":
            self.gate = Projection((heads,), ("embed", "heads"), bias=True, **options)
        shape = (size, self.feature_dim)
        if self.feature_map == "performer":
            init = named(ops.orthogonal_features, None, "head_dim")
            self.random_features = self.param("random_features", init, shape)
        if (
            self.feature_map == "all_poly"
        ):  # the authors' options for its init are overridden by their model's
            init = named(nn.initializers.normal(self.init_std), None, "head_dim")
            self.poly_linear = self.param("poly_linear", init, shape)
            self.poly_squares = self.param("poly_squares", init, shape)

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
        heads, _, _ = head_layout(self.d_model, self.num_heads)
        log_decay = None
        if self.decay != "none":
            log_decay = ops.fixed_log_decay(heads, self.decay_const)[None, None]
        q, k, v = self.q(x), self.k(x), self.v(x)
        options: dict[str, Any] = {"eps": self.eps, "implementation": self.implementation}
        is_taylor = self.feature_map == "taylor"
        if is_taylor and state is not None and x.shape[1] == 1 and log_decay is segment_ids is mask is None:
            y, state = ops.taylor_step(q[:, 0], k[:, 0], v[:, 0], state, **options)
            y = y[:, None]
        else:
            attend: Any = ops.taylor_attention
            if not is_taylor:
                attend = functools.partial(ops.linear_attention, feature_map=self.phi())
            if self.feature_map == "cosformer":
                places = self._cosformer_positions(x, state, segment_ids, positions, mask)
                horizon = self.max_length or x.shape[1]
                q, k = (ops.cosformer_features(features, places, horizon) for features in (q, k))
            options |= {"log_decay": log_decay, "segment_ids": segment_ids, "mask": mask}
            y = attend(q, k, v, initial_state=state, return_state=state is not None, **options)
            if state is not None:
                y, state = y
        if self.decay == "gated":
            y = y * self.gate(x)[..., None]
        return self.out(y), state

    def phi(self) -> ops.FeatureMap:
        """The map of a bound module; cosformer's queries and keys are mapped before, by their positions."""
        match self.feature_map:
            case "cosformer":
                return ops.IDENTITY
            case "performer":
                return ops.performer_map(lax.stop_gradient(self.random_features))
            case "all_poly":
                weights = self.poly_linear, self.poly_squares
                return ops.all_poly_map(*(weights if self.learned_map else lax.stop_gradient(weights)))
        return ops.FEATURE_MAPS[self.feature_map]

    def _cosformer_positions(
        self,
        x: Array,
        state: State | None,
        segment_ids: SegmentIds | None,
        positions: Positions | None,
        mask: Mask | None,
    ) -> Positions:
        if self.max_length is None:
            context = {"state": state, "segment_ids": segment_ids, "positions": positions, "mask": mask}
            for name, value in context.items():
                self._expect_max_length(value is None, name)
        elif state is None and segment_ids is None and positions is None:
            limit = f"max_length = {self.max_length} tokens, cosformer's longest text"
            expect_room(None, x.shape[1], mask, self.max_length, limit)
        index: Any = positions
        if index is None:
            before = None if state is None else state.stream
            index = ops.advance(before, x.shape[0], x.shape[1], segment_ids, mask)[0].positions
        # Padding may lie beyond the longest text, and its NaN would reach every token.
        return index if mask is None else jnp.where(mask, index, 0)

    def _expect_max_length(self, condition: bool, name: str) -> None:
        expect(
            condition, "max_length", None, f"a number of tokens where feature_map = 'cosformer' has {name}"
        )

    @property
    def feature_size(self) -> int:
        """F, features of a query or key."""
        name, width, count = self.feature_map, self.feature_dim, self.num_features
        expect_choice("feature_map", name, FEATURE_MAPS)
        expect(width >= 1, "feature_dim", width, "at least 1")
        expect(
            self.learned_map or name == "all_poly", "learned_map", False, f"True for feature_map = {name!r}"
        )
        if name in ("performer", "all_poly"):
            expect(count is None or count >= 1, "num_features", count, "at least 1")
            return count or (256 if name == "performer" else width)
        expect(
            count is None, "num_features", count, f"None for feature_map = {name!r}, whose number is fixed"
        )
        if name == "cosformer":
            length = self.max_length
            expect(length is None or length >= 1, "max_length", length, "at least 1")
            return 2 * width
        expect(self.max_length is None, "max_length", self.max_length, f"None for feature_map = {name!r}")
        return ops.FEATURE_MAPS[name].size(width)

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        self._expect_max_length(self.feature_map != "cosformer" or self.max_length is not None, "a state")
        return ops.init_linear_attention_state(batch_size, heads, self.feature_size, head_dim)

    def state_size(self, length: int) -> int:
        """(d + 1) F per head, F = 1 + 3 d'/2 + d'^2/2 of Taylor's map (Based, appendix E.2).

        Zoology counts d' features of Performer's map, however many it has, and so does this.
        """
        heads, _, head_dim = head_layout(self.d_model, self.num_heads)
        size = self.feature_dim if self.feature_map == "performer" else self.feature_size
        return heads * (head_dim + 1) * size
