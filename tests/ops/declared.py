"""What is declared about an op, its programs, and their results beside the oracle's."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import draw
from tests.ops.placement import Arrays, Placement, nowhere, where
from tests.tolerances import (
    FINITE_DIFFERENCE,
    FLOAT32,
    FLOAT32_GRADIENT,
    FLOAT32_STATE,
    FLOAT64,
    assert_close,
)

PREFIX = 5
"""The most tokens that a drawn initial state may have consumed."""

STEP = 1e-5
"""of central differences"""


class Result(NamedTuple):
    y: np.ndarray
    state: Arrays
    """the arrays of the final state by the names of the initial one's"""
    stream: Arrays
    """of the final state, as fields of `Placement`; empty without a state"""
    gradients: Arrays


class Drawn(NamedTuple):
    arrays: Arrays
    at: Placement
    weights: Arrays
    """of the outputs and the state in the scalar whose gradient is taken"""
    y: np.ndarray
    """what the oracle makes of them"""
    state: Arrays

    def __repr__(self) -> str:  # what hypothesis reports: the drawn data without the random numbers
        return f"Drawn({self.at})"


@functools.cache
def program(
    contract: type["Declared"], case: Any, implementation: str, gradients: bool = True
) -> Callable[..., Any]:
    """Outputs, the state, and the gradients of a weighted sum of both, compiled."""

    def forward(arrays, at, weights):
        at = at if contract.segments else at._replace(segment_ids=None)
        y, state, stream = contract().call(arrays, at, case, implementation)
        total = sum((weights[name] * x).sum() for name, x in {"y": y, **state}.items())
        return total, (y, state, stream)

    run = jax.value_and_grad(forward, has_aux=True) if gradients else lambda *x: (forward(*x), {})
    return jax.jit(run)


@st.composite
def examples(draw_, contract: "Declared", case: Any, *, fresh: bool = False, full: bool = False) -> Drawn:
    """Inputs of a case; `fresh`: no row has tokens yet; `full`: nothing is padded."""
    batch, length = case.sizes[:2]
    rng = np.random.default_rng(draw_(draw.seeds))
    arrays = contract.arrays(rng, case)
    ids = draw_(draw.segment_ids(batch, length)) * contract.segments
    counts = np.full(batch, length) if full else draw_(draw.counts(batch, length))
    lengths = np.zeros(batch, np.int32) if fresh else draw_(draw.counts(batch, PREFIX))
    start = rng.integers(0, np.maximum(lengths, 1)).astype(np.int32)
    segment = np.where(lengths > 0, rng.integers(0, 3, size=batch), 0).astype(np.int32) * contract.segments
    at = Placement(ids, draw.mask(counts, length), lengths, start, segment)
    for name, nothing in contract.empty(arrays, case).items():
        arrays[name] = where(lengths > 0, arrays[name], nothing)
    y, state = contract.oracle(arrays, at, case)
    weights = {name: rng.normal(size=x.shape) for name, x in {"y": y, **state}.items()}
    weights["y"] = where(at.mask, weights["y"], 0)
    for name in state:  # rows that still have no tokens
        weights[name] = where(at.moved()["length"] > 0, weights[name], 0)
    return Drawn(arrays, at, weights, y, state)


class Declared:
    """What an op's test class declares, and what the laws do with it: draw, run, compare."""

    cases: ClassVar[Sequence[Any]]
    """hashable, with the batch and the length first in `sizes`; marked as `tests.marks` does"""
    tokens: ClassVar[Sequence[str]]
    """the arrays with the length as their second axis"""
    state: ClassVar[Sequence[str]] = ()
    """the arrays of the initial state"""
    implementations: ClassVar[Sequence[str]] = ("reference", "xla")
    """the first is the reference, to whose gradients the others' are compared element by element"""
    bare: ClassVar[Sequence[Any]] = ()
    """cases of `test_one_token` and `test_without_a_placement`; the first one if there are none"""
    examples: ClassVar[int] = 5
    segments: ClassVar[bool] = True
    """False for a form that takes no segment ids"""
    wide: ClassVar[Sequence[str]] = ()
    """arrays in float32 where the others are in bfloat16"""
    low_state: ClassVar[str] = "float32"
    """dtype of the state of a call in bfloat16"""
    junk: ClassVar[Sequence[float]] = (np.nan, np.inf, 1e30)
    """what may stand at padded tokens"""
    zero_padding: ClassVar[bool] = True
    """outputs at padded tokens are 0, not only finite"""
    forgets: ClassVar[bool] = True
    """the arrays of the final state are those of its last segment alone"""

    __test__ = False  # pytest collects subclasses

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__test__ = cls.__name__.startswith("Test")

    def pytest_generate_tests(self, metafunc: Any) -> None:
        core = [case for case in self.cases if not hasattr(case, "marks")] or self.cases
        first, *further = self.cases
        later = [x if hasattr(x, "marks") else pytest.param(x, marks=pytest.mark.release) for x in further]
        bare = self.bare or core[:1]
        values = {"case": core, "any_case": self.cases, "bare": bare, "each": [first, *later]}
        for name in values.keys() & set(metafunc.fixturenames):
            metafunc.parametrize(name, values[name], ids=str)

    def arrays(self, rng: np.random.Generator, case: Any) -> Arrays:
        """Differentiable inputs in float64, arrays of the initial state among them."""
        raise NotImplementedError

    def call(self, arrays: Any, at: Placement, case: Any, implementation: str) -> tuple[Any, Any, Any]:
        """The op: y, the arrays of its final state by their names in `arrays`, and its stream or None."""
        raise NotImplementedError

    def oracle(self, arrays: Arrays, at: Placement, case: Any) -> tuple[np.ndarray, Arrays]:
        """The definition in float64 NumPy: y, 0 at padded tokens, and the arrays of the final state."""
        raise NotImplementedError

    def moving(self, arrays: Arrays, case: Any) -> list[str]:
        """Those of `tokens` that a case has, with numbers of their own for every token."""
        return [x for x in self.tokens if x in arrays and arrays[x].shape[:2] == tuple(case.sizes[:2])]

    def empty(self, arrays: Arrays, case: Any) -> Arrays:
        """The state of rows without tokens."""
        return {name: np.zeros_like(arrays[name]) for name in self.state}

    def law(
        self, case: Any, check: Callable[..., None], *more: Any, count: int | None = None, **options: Any
    ) -> None:
        """Check what hypothesis draws for a case, and `more`."""
        drawn = given(examples(self, case, **options), *more)
        settings(max_examples=count or self.examples)(drawn(check))()

    def run(
        self,
        arrays: Arrays,
        at: Placement,
        weights: Arrays,
        case: Any,
        implementation: str,
        dtype: str = "float64",
        gradients: bool = True,
    ) -> Result:
        """The program's results in NumPy. States are in float32 if not in float64."""
        wide = dtype if dtype == "float64" else "float32"
        kept = (*self.state, *self.wide)
        arrays = {name: np.asarray(x, wide if name in kept else dtype) for name, x in arrays.items()}
        weights = {name: np.asarray(x, wide) for name, x in weights.items()}
        with jax.enable_x64(dtype != "bfloat16"):  # a float32 that becomes float64 is noticed
            compiled = program(type(self), case, implementation, gradients)
            (_, (y, state, stream)), slopes = jax.tree.map(np.asarray, compiled(arrays, at, weights))
        stream = {name: getattr(stream, name) for name in nowhere(0)} if stream is not None else {}
        for name in self.state if gradients and at.length is not None else ():
            slopes[name] = where(at.length > 0, slopes[name], 0)  # before the first token it is no input
        return Result(y, state, stream, slopes)

    def check(self, result: Result, drawn: Drawn, what: str, dtype: str = "float64") -> None:
        """Outputs, the state and the stream are the oracle's."""
        wide, real, begun = dtype == "float64", drawn.at.mask, drawn.at.moved()["length"] > 0
        assert_close(where(real, result.y, 0), drawn.y, FLOAT64 if wide else FLOAT32, f"{what}: y")
        for name, got in result.state.items():
            states = [where(begun, x, 0) for x in (got, drawn.state[name])]
            assert_close(*states, FLOAT64 if wide else FLOAT32_STATE, f"{what}: {name}")
            states = [where(begun, 0, x) for x in (got, drawn.state[name])]
            assert_close(*states, 1e-7, f"{what}: {name} of nothing")
        assert np.isfinite(result.y).all(), f"{what}: y at padding"
        assert not (self.zero_padding and where(real, 0, result.y).any()), f"{what}: y at padding"
        if result.stream:
            assert_close(result.stream, drawn.at.moved(), 0, f"{what}: stream")

    def check_gradients(self, result: Result, drawn: Drawn, case: Any, what: str, dtype: str) -> None:
        """Along one random direction per argument they are the derivative of the oracle."""
        rng = np.random.default_rng(0)
        tolerance = FINITE_DIFFERENCE if dtype == "float64" else FLOAT32_GRADIENT

        def loss(arrays):
            y, state = self.oracle(arrays, drawn.at, case)
            return sum((drawn.weights[name] * x).sum() for name, x in {"y": y, **state}.items())

        for name, x in drawn.arrays.items():
            direction = rng.normal(size=x.shape)
            if name in self.state:
                direction = where(drawn.at.length > 0, direction, 0)
            above, below = (loss(drawn.arrays | {name: x + step * direction}) for step in (STEP, -STEP))
            products = result.gradients[name] * direction
            # Relative to what the sum would be without cancellation.
            scale = max(np.abs(products).sum(), abs(loss(drawn.arrays)), 1)
            error = abs(products.sum() - (above - below) / (2 * STEP))
            assert error < tolerance * scale, f"{what}: gradient of {name}, {error:.2e} of {scale:.3g}"

    def check_all(self, drawn: Drawn, case: Any, name: str, dtype: str) -> Result:
        """One program against the oracle."""
        result, what = self.run(*drawn[:3], case, name, dtype), f"{name} in {dtype}"
        assert {x.dtype for x in jax.tree.leaves(result._replace(stream=()))} == {np.dtype(dtype)}
        self.check(result, drawn, what, dtype)
        self.check_gradients(result, drawn, case, what, dtype)
        return result

    def programs(self, case: Any) -> list[tuple[str, str]]:
        """Implementations and dtypes that the tests above compile in `make check`."""
        first, *others = self.implementations
        reference = [(first, "float64")] if others and case == self.first_case() else []
        return reference + [(name, "float32") for name in others or [first]]

    def first_case(self) -> Any:
        """That of the tests which need one only."""
        return getattr(self.cases[0], "values", (self.cases[0],))[0]

    def alone(self, at: Placement) -> Placement:
        """One document in each row from its begin to its end."""
        ids = 0 * at.segment_ids
        return at._replace(segment_ids=ids, mask=ids == 0, **nowhere(len(ids)))
