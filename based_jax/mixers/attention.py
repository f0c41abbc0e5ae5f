"""Causal softmax attention over the whole past, as in Transformer++ (Based, Table 8).

y_i = sum_{j<=i} softmax_j(q_i . k_j / sqrt(d)) v_j,   rotary positions on part of each head
"""

from typing import Any, ClassVar

from based_jax.mixers.contract import Card
from based_jax.mixers.softmax_heads import SoftmaxHeads
from based_jax.typing import State


class Attention(SoftmaxHeads):
    """Full attention. Its state grows with the text: `init_state` needs `max_length`."""

    card: ClassVar[Card] = Card(
        equation="softmax(q k^T / sqrt(d_h)) v, rotary positions",
        training="N^2 D",
        state="2 D N",
        decoding="read 2 D N",
        source="Vaswani et al. 2017; Based, Table 8",
        parity=(
            "based/mha_rotary",
            "zoology/mha",
        ),
    )

    @property
    def reach(self) -> None:
        return None

    def init_state(self, batch_size: int, max_length: int | None = None, dtype: Any = None) -> State:
        return self.full_cache(batch_size, max_length, dtype)

    def state_size(self, length: int) -> int:
        """2 d N (Based, appendix E.2)."""
        return self.cached_floats(length)
