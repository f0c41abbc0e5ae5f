"""Flax modules that take arrays on any mesh, and what a mixer knows about the tokens of a call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
from flax import linen as nn

from based_jax.ops.core import sharding
from based_jax.ops.core.stream import Stream, TokenPositions
from based_jax.typing import Array, Int, Mask, Positions, SegmentIds, State

_WANTS_OUTPUT: Any = jax.make_user_context(True)
"""part of the key of `jit`'s cache of traced programs"""


class Module(nn.Module):
    """`nn.Module` whose `apply` and `init` switch a mesh's Explicit axes to Auto.

    Outputs are sharded over the batch like the first array of the call whose rows are sharded; new variables
    are replicated. An outer module of another library does not call these methods: wrap its `apply` in
    `jax.sharding.auto_axes`.
    """

    @nn.nowrap
    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the module with `variables`, see `nn.Module.apply`."""
        inputs = [value for name, value in kwargs.items() if name != "rngs"]
        return sharding.isolated(self._apply, (variables, *args), kwargs, like=(args, inputs))

    @nn.nowrap
    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on a mesh without Explicit axes."""
        return super().apply(*args, **kwargs)

    @nn.nowrap
    def init(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        """Initialise the variables, see `nn.Module.init`; models do not call their layers."""
        return self._initialised(False, rngs, *args, **kwargs)[1]

    @nn.nowrap
    def init_with_output(self, rngs: Any, *args: Any, **kwargs: Any) -> Any:
        """Initialise the variables, see `nn.Module.init_with_output`."""
        return self._initialised(True, rngs, *args, **kwargs)

    @nn.nowrap
    def _initialised(self, wants_output: bool, *args: Any, **kwargs: Any) -> Any:
        """Return the output, which is unspecified unless the caller wants it, and the variables."""
        with _WANTS_OUTPUT(wants_output):
            return sharding.isolated(cast(Any, super().init_with_output), args, kwargs)


def wants_output() -> bool:
    """Return whether the caller uses the output of the module; `init` does not."""
    return _WANTS_OUTPUT.value


@dataclass(frozen=True)
class Context:
    """The tokens of one call.

    Attributes:
        segment_ids: document of each token, (B, N), as the caller passed them, else None.
        positions: positions for rotary embeddings, (1 or B, N): those that the caller passed, else
            `token_positions.positions`.
        mask: True for real tokens and False for padding, (B, N), as the caller passed it, else None.
        tokens: token ids, (B, N), as the caller passed them, else None.
        token_positions: index of each token in its row, counted over calls, and of the first token of its
            document; their difference is `token_positions.positions`, (1 or B, N).
        stream: position of each row after this call, (B,), which the next state contains.
        has_state: whether the call continues from a state and returns one.
        has_positions: whether the caller passed `positions`.
        apart: whether `mix` may return (y, bias) in place of y, without the bias of the output projection.
    """

    token_positions: TokenPositions
    stream: Stream
    segment_ids: SegmentIds | None
    positions: Positions
    mask: Mask | None
    tokens: Int[Array, "B N"] | None
    has_state: bool
    has_positions: bool
    apart: bool = False

    @property
    def is_plain_step(self) -> bool:
        """Whether the call is one more token per row, without padding, in the segment of the last token."""
        is_plain = self.has_state and self.segment_ids is self.mask is None
        return is_plain and self.token_positions.index.shape[1] == 1

    @property
    def is_whole(self) -> bool:
        """Whether the call has no state, and each row is one document without padding."""
        return not self.has_state and self.segment_ids is self.mask is None

    def run(
        self, op: Callable[..., Any], *args: Any, initial_state: State, **options: Any
    ) -> tuple[Any, State]:
        """Call an op with the segment ids, mask and state of these tokens.

        Returns:
            The op's output, and its next state (None in a call without a state).
        """
        options |= {"segment_ids": self.segment_ids, "mask": self.mask}
        if not self.has_state:
            return op(*args, **options), None
        return op(*args, initial_state=initial_state, return_state=True, **options)


def find_stream(state: State | None) -> Stream | None:
    """Return the stream of a state (current position of each row): its `stream`, or the first inside it."""
    if state is not None and hasattr(state, "stream"):
        return state.stream
    return next(iter(streams(state)), None)


def streams(state: State | None) -> list[Stream]:
    """Return the streams inside a state, which are all equal."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, Stream))
    return [node for node in nodes if isinstance(node, Stream)]
