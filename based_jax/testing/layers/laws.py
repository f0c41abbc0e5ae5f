"""A layer of any framework as functions of NumPy arrays, and its laws: two ways to compute the same.

split            one call == a call for each of two parts
chunks           one call == a call for each of many parts
decoding         one call == a prefill, then a call for each token
packing          packed documents == each document alone
padding right    a padded row == the row alone, in its outputs and in the call that continues from its state;
padding left     padding has finite values of the same size as those of tokens
padding both
causality        y[:, :t] does not change when x[:, t:] changes
rollback         a state continues in the same way twice, with another continuation in between
batch            a row does not depend on the other rows
gradient padding gradients of a padded row == those of the row alone, and 0 at padding
gradient packing gradients of packed documents == those of each document alone
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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


ROWS = 2
"""of every batch: enough to see one row in another"""

Sizes = tuple[int, ...]
Run = Callable[..., np.ndarray]
"""`Layer.outputs` or `Layer.gradients`"""


class Difference(NamedTuple):
    error: float
    """relative to the largest magnitude of the expected array, absolute if that is 0; infinite for NaN"""
    where: str


@dataclass(frozen=True)
class Law:
    """A law of layers whose inputs consist of parts.

    Attributes:
        check: yields the differences for parts of these sizes in tokens.
        names: what the parts are, for reports.
        least: smallest size of each part.
        most: number of parts that are tried.
        needs: features that the layer must support, all of them; one of those joined by "|".
        causal: only for causal layers.
    """

    check: Callable[[Layer, Sizes, np.random.Generator], Iterator[Difference]]
    names: str
    least: Sizes
    most: int
    needs: tuple[str, ...] = ()
    causal: bool = False

    def missing(self, layer: Layer) -> str:
        """Return what a layer lacks for this law, "" if nothing."""
        if self.causal and not layer.causal:
            return "the layer is not causal"
        lacking = [need for need in self.needs if not {*need.split("|")} & {*layer.supports}]
        return f"the layer does not support {' and '.join(lacking)}".replace("|", " or ") if lacking else ""


def compare(got: np.ndarray, want: np.ndarray, where: str) -> Difference:
    """Return the largest difference of two arrays (rows, length, width), with its row and token."""
    errors = np.abs(got.astype(np.float64) - want)
    errors = np.where(np.isfinite(errors), errors, np.inf).max(axis=2)
    row, token = np.unravel_index(errors.argmax(), errors.shape)
    error = float(errors.max() / (np.abs(want).max() or 1.0))
    return Difference(error, f"{where}, row {row}, token {token}")


def normals(layer: Layer, length: int, draw: np.random.Generator) -> np.ndarray:
    return draw.normal(size=(ROWS, length, layer.width)).astype(np.float32)


def parts(layer: Layer, sizes: Sizes, draw: np.random.Generator) -> Iterator[Difference]:
    x = normals(layer, sum(sizes), draw)
    got, _ = layer.calls(x, sizes, layer.fresh(ROWS))
    yield compare(got, layer.call(x)[0], "outputs")


def decoding(layer: Layer, sizes: Sizes, draw: np.random.Generator) -> Iterator[Difference]:
    prompt, steps = sizes
    return parts(layer, (*[prompt] * (prompt > 0), *[1] * steps), draw)


def causality(layer: Layer, sizes: Sizes, draw: np.random.Generator) -> Iterator[Difference]:
    x, kept = normals(layer, sum(sizes), draw), sizes[0]
    other = np.concatenate([x[:, :kept], normals(layer, sizes[1], draw)], axis=1)
    yield compare(layer.call(other)[0][:, :kept], layer.call(x)[0][:, :kept], "outputs")


def rollback(layer: Layer, sizes: Sizes, draw: np.random.Generator) -> Iterator[Difference]:
    """As in speculation: after a rejected draft, other tokens continue from the state of the prefix."""
    prefix, length = sizes
    calls = [length] if "state" in layer.supports else [1] * length
    _, state = layer.call(normals(layer, prefix, draw), layer.fresh(ROWS))
    draft, x = normals(layer, length, draw), normals(layer, length, draw)
    first, _ = layer.calls(x, calls, state)
    layer.calls(draft, calls, state)
    yield compare(layer.calls(x, calls, state)[0], first, "outputs of the second continuation")


def batch(layer: Layer, sizes: Sizes, draw: np.random.Generator) -> Iterator[Difference]:
    x = normals(layer, sizes[0], draw)
    alone = [layer.call(x[i : i + 1])[0] for i in range(ROWS)]
    yield compare(layer.call(x)[0], np.concatenate(alone), "outputs")


def packing(layer: Layer, sizes: Sizes, draw: np.random.Generator, run: Run) -> Iterator[Difference]:
    """The second row has documents of the same sizes in the other order."""
    x, dy = (normals(layer, sum(sizes), draw) for _ in range(2))
    orders, want = (sizes, sizes[::-1]), np.zeros_like(x)
    for row, order in enumerate(orders):
        for end, size in zip(np.cumsum(order), order, strict=True):
            document = slice(row, row + 1), slice(end - size, end)
            want[document] = run(layer, x[document], dy[document])
    ids = np.stack([np.repeat(np.arange(len(sizes)), order) for order in orders])
    yield compare(run(layer, x, dy, segment_ids=ids), want, run.__name__)


def padding(
    layer: Layer,
    sizes: Sizes,
    draw: np.random.Generator,
    run: Run = Layer.outputs,
    side: str = "both",
) -> Iterator[Difference]:
    """The first row has no padding. Padded outputs have no gradient, as in a masked loss."""
    before, real, _ = {"right": (0, *sizes), "left": (*sizes, 0), "both": sizes}[side]
    row, tokens = slice(1, 2), slice(before, before + real)
    x, dy = (normals(layer, sum(sizes), draw) for _ in range(2))
    mask = np.ones(x.shape[:2], bool)
    mask[1] = False
    mask[row, tokens] = True
    dy, want = dy * mask[..., None], np.zeros_like(x)
    want[:1] = run(layer, x[:1], dy[:1])
    want[row, tokens] = run(layer, x[row, tokens], dy[row, tokens])
    got = run(layer, x, dy, mask=mask)
    if run is Layer.gradients:
        yield compare(got, want, run.__name__)
        return
    yield compare(np.where(mask[..., None], got, 0), want, run.__name__)
    if {"state", "step"} & {*layer.supports}:
        got, state = layer.call(x, layer.fresh(ROWS), mask=mask)
        yield compare(np.where(mask[..., None], got, 0), want, "outputs of a call with a state")
        more = normals(layer, 1, draw)
        alone = [layer.call(x, layer.fresh(1))[1] for x in (x[:1], x[row, tokens])]
        next_ = [layer.call(more[i : i + 1], state)[0] for i, state in enumerate(alone)]
        yield compare(layer.call(more, state)[0], np.concatenate(next_), "outputs of the next call")


def gradient_padding(layer: Layer, sizes: Sizes, draw: np.random.Generator) -> Iterator[Difference]:
    """On the sides on which the layer supports padding."""
    side = next(side for side in ("both", "right", "left") if f"mask_{side}" in layer.supports)
    chosen = {"both": sizes, "right": sizes[1:], "left": sizes[:2]}[side]
    return padding(layer, chosen, draw, Layer.gradients, side)


LAWS = {
    "split": Law(parts, "calls", (1, 1), 2, ("state",), True),
    "chunks": Law(parts, "calls", (1, 1), 5, ("state",), True),
    "decoding": Law(decoding, "prefill, single steps", (0, 1), 2, ("step",), True),
    "packing": Law(partial(packing, run=Layer.outputs), "documents", (1, 1), 4, ("segment_ids",)),
    "padding right": Law(partial(padding, side="right"), "real, padding", (1, 1), 2, ("mask_right",)),
    "padding left": Law(partial(padding, side="left"), "padding, real", (1, 1), 2, ("mask_left",)),
    "padding both": Law(padding, "padding, real, padding", (1, 1, 1), 3, ("mask_both",)),
    "causality": Law(causality, "unchanged, changed", (1, 1), 2, (), True),
    "rollback": Law(rollback, "prefix, continuation", (1, 1), 2, ("state|step",), True),
    "batch": Law(batch, "each row", (1,), 1),
    "gradient padding": Law(
        gradient_padding,
        "padding, real, padding, where supported",
        (1, 1, 1),
        3,
        ("gradient", "mask_right|mask_left|mask_both"),
    ),
    "gradient packing": Law(
        partial(packing, run=Layer.gradients), "documents", (1, 1), 4, ("gradient", "segment_ids")
    ),
}
