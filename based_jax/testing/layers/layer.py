"""A layer of any framework as functions of NumPy arrays, and the facts that decide which laws it has."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from based_jax.validate import expect, expect_integer

FEATURES = {
    "state": "a call of any length continues from a state",
    "step": "a call of one token continues from a state",
    "segment_ids": "packed documents, numbered from 0 in each row",
    "mask_right": "padding after the tokens of a row",
    "mask_left": "padding before the tokens of a row",
    "mask_both": "padding before and after the tokens of a row",
    "gradient": "the gradient of the inputs",
}
"""What a layer may support, and what that means"""


@dataclass(frozen=True)
class Layer:
    """A layer with fixed parameters, for `check_layer`. Its functions must not change their arguments.

    x, y, dx and dy are float32 of shape (rows, length, width). `segment_ids` (rows, length) are integers,
    `mask` (rows, length) is True at real tokens; `context` stands for either of the two.

    Attributes:
        forward: `forward(x, *, segment_ids=None, mask=None, state=None) -> (y, state)`. What is None is not
            passed. The returned state is not used if none was passed.
        width: channels of x and y.
        supports: names from `FEATURES`; laws that need another feature are not checked.
        init_state: `init_state(rows) -> state`, the state before the first token, any object but None.
        gradient: `gradient(x, dy, **context) -> dx`, the gradient of sum(y * dy).
        causal: an output depends on its own and earlier tokens only.
        tolerance: largest difference between two ways to compute the same, relative to the largest magnitude.
        drift_tolerance: of the law "drift".
        longest: tokens of the longest row. A fault that shows only after more tokens is not found.
        name: in reports.
    """

    forward: Callable[..., tuple[Any, Any]]
    width: int
    supports: Collection[str] = ()
    init_state: Callable[[int], Any] | None = None
    gradient: Callable[..., Any] | None = None
    causal: bool = True
    tolerance: float = 1e-5
    drift_tolerance: float = 1e-3
    longest: int = 160
    name: str = "layer"

    def __post_init__(self) -> None:
        unknown = sorted({*self.supports} - {*FEATURES})
        expect(not unknown, "supports", unknown, f"names from {', '.join(FEATURES)}")
        for features, function in (({"state", "step"}, "init_state"), ({"gradient"}, "gradient")):
            is_given = getattr(self, function) is not None or not features & {*self.supports}
            expect(is_given, function, None, f"a function, since supports = {sorted(self.supports)}")
        expect_integer("width", self.width, 1)
        expect_integer("longest", self.longest, 5)

    def fresh(self, rows: int) -> Any:
        """Return a state before the first token."""
        assert self.init_state is not None  # __post_init__ checked it
        return self.init_state(rows)

    def call(self, x: np.ndarray, state: Any = None, **context: Any) -> tuple[np.ndarray, Any]:
        """Return y (rows, length, width) and the state of a call; ValueError if y has another shape."""
        y, after = self.forward(x, **context, **({} if state is None else {"state": state}))
        return _like(x, "y", y), after

    def calls(self, x: np.ndarray, sizes: Collection[int], state: Any) -> tuple[np.ndarray, Any]:
        """Return y (rows, length, width) and the state of a call for each of the sizes."""
        outputs = []
        for part in np.split(x, np.cumsum([*sizes])[:-1], axis=1):
            y, state = self.call(part, state)
            outputs.append(y)
        return np.concatenate(outputs, axis=1), state

    def outputs(self, x: np.ndarray, dy: np.ndarray, **context: Any) -> np.ndarray:
        """Return y (rows, length, width), without a state; dy is not used."""
        return self.call(x, **context)[0]

    def gradients(self, x: np.ndarray, dy: np.ndarray, **context: Any) -> np.ndarray:
        """Return dx (rows, length, width); ValueError if it has another shape."""
        assert self.gradient is not None  # __post_init__ checked it
        return _like(x, "dx", self.gradient(x, dy, **context))


def _like(x: np.ndarray, name: str, array: Any) -> np.ndarray:
    array = np.asarray(array)
    expect(array.shape == x.shape, f"shape of {name}", array.shape, f"{x.shape}, the shape of x")
    return array
