"""The laws of every op on sequences, checked on one compiled program per case, implementation and dtype.

An op's test file subclasses `Contract` and has its cases, its oracle and what is special to it:

    class TestMean(Contract):
        cases = [Case((2, 7, 3))]  # anything hashable whose `sizes` begin with the batch and the length
        tokens, state = ("x",), ("sum",)

        def arrays(self, rng, case):
            batch, length, channels = case.sizes
            return {"x": rng.normal(size=case.sizes), "sum": rng.normal(size=(batch, channels))}

        def call(self, arrays, at, case, implementation):
            state = at.after(lambda stream: ops.MeanState(arrays["sum"], stream))
            y, state = ops.mean(arrays["x"], initial_state=state, return_state=True, **at.context)
            return y, {"sum": state.sum}, state.stream

        def oracle(self, arrays, at, case):
            ...  # a loop over rows and tokens in float64 NumPy: y and {"sum": ...}

Segment ids, padding and the initial state are always there and are data: where a law needs none of them, it
passes ids of 0, a mask of True and the state of rows that have seen nothing. So a row is cut, and a document
taken out of its pack, by rolling tokens to the front and masking the rest. `test_without_a_placement` passes
None instead. An op that does not have or promise something sets its test to None: `test_split = None`.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import draw
from tests.ops.placement import Arrays, Placement, nowhere, roll, where
from tests.tolerances import (
    BFLOAT16,
    FINITE_DIFFERENCE,
    FLOAT32,
    FLOAT32_GRADIENT,
    FLOAT32_STATE,
    FLOAT64,
    assert_close,
)

PREFIX = 5
"""The most tokens that a drawn initial state has seen."""

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
    contract: type["Contract"], case: Any, implementation: str, gradients: bool = True
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
def examples(draw_, contract: "Contract", case: Any, *, fresh: bool = False, full: bool = False) -> Drawn:
    """Inputs of a case; `fresh`: no row has seen anything; `full`: nothing is padded."""
    batch, length = case.sizes[:2]
    rng = np.random.default_rng(draw_(draw.seeds))
    arrays = contract.arrays(rng, case)
    ids = draw_(draw.segment_ids(batch, length)) * contract.segments
    counts = np.full(batch, length) if full else draw_(draw.counts(batch, length))
    seen = np.zeros(batch, np.int32) if fresh else draw_(draw.counts(batch, PREFIX))
    start = rng.integers(0, np.maximum(seen, 1)).astype(np.int32)
    segment = np.where(seen > 0, rng.integers(0, 3, size=batch), 0).astype(np.int32) * contract.segments
    at = Placement(ids, draw.mask(counts, length), seen, start, segment)
    for name, nothing in contract.empty(arrays, case).items():
        arrays[name] = where(seen > 0, arrays[name], nothing)
    y, state = contract.oracle(arrays, at, case)
    weights = {name: rng.normal(size=x.shape) for name, x in {"y": y, **state}.items()}
    weights["y"] = where(at.mask, weights["y"], 0)
    for name in state:  # rows that have still seen nothing
        weights[name] = where(at.moved()["length"] > 0, weights[name], 0)
    return Drawn(arrays, at, weights, y, state)


class Contract:
    """Subclassed once per op, or per form of an op; see the module's docstring."""

    cases: ClassVar[Sequence[Any]]
    """hashable, with the batch and the length first in `sizes`; marked as `tests.marks` does"""
    tokens: ClassVar[Sequence[str]]
    """the arrays with the length as their second axis"""
    state: ClassVar[Sequence[str]] = ()
    """the arrays of the initial state"""
    implementations: ClassVar[Sequence[str]] = ("reference", "xla")
    """the first is checked against differences of the oracle, the gradients of the others against its"""
    bare: ClassVar[Sequence[Any]] = ()
    """cases of `test_shorter_calls` and `test_without_a_placement`; the first one if there are none"""
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

    __test__ = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__test__ = cls.__name__.startswith("Test")

    def pytest_generate_tests(self, metafunc: Any) -> None:
        core = [case for case in self.cases if not hasattr(case, "marks")] or self.cases
        values = {"case": core, "any_case": self.cases, "bare": self.bare or core[:1]}
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
        """The state of rows that have seen nothing."""
        return {name: np.zeros_like(arrays[name]) for name in self.state}

    def law(
        self, case: Any, check: Callable[..., None], *more: Any, count: int | None = None, **options: Any
    ) -> None:
        """Check what hypothesis draws for a case, and `more`."""
        drawn = given(examples(self, case, **options), *more)
        settings(max_examples=count or self.examples)(drawn(check))()

    def run(
        self, arrays: Arrays, at: Placement, weights: Arrays, case: Any, implementation: str,
        dtype: str = "float64", gradients: bool = True,
    ) -> Result:  # fmt: skip
        """The program's results in NumPy. States are in float32 if not in float64."""
        wide = dtype if dtype == "float64" else "float32"
        kept = (*self.state, *self.wide)
        arrays = {name: np.asarray(x, wide if name in kept else dtype) for name, x in arrays.items()}
        weights = {name: np.asarray(x, wide) for name, x in weights.items()}
        with jax.enable_x64(dtype != "bfloat16"):  # a float32 that becomes float64 is seen
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
            ahead, behind = (loss(drawn.arrays | {name: x + step * direction}) for step in (STEP, -STEP))
            products = result.gradients[name] * direction
            # Relative to what the sum would be without cancellation.
            scale = max(np.abs(products).sum(), abs(loss(drawn.arrays)), 1)
            error = abs(products.sum() - (ahead - behind) / (2 * STEP))
            assert error < tolerance * scale, f"{what}: gradient of {name}, {error:.2e} of {scale:.3g}"

    def check_all(self, drawn: Drawn, case: Any, name: str, dtype: str) -> Result:
        """One program against the oracle."""
        result, what = self.run(*drawn[:3], case, name, dtype), f"{name} in {dtype}"
        assert {x.dtype for x in jax.tree.leaves(result._replace(stream=()))} == {np.dtype(dtype)}
        self.check(result, drawn, what, dtype)
        self.check_gradients(result, drawn, case, what, dtype)
        return result

    def test_the_reference(self):
        """The first implementation in float64: values, states and gradients are the oracle's."""
        case = self.first_case()

        def law(drawn):
            self.check_all(drawn, case, self.implementations[0], "float64")

        self.law(case, law)

    def test_values_states_and_gradients(self, case):
        """The others in float32, against the oracle."""

        def law(drawn):
            for name in self.implementations[1:] or self.implementations:
                self.check_all(drawn, case, name, "float32")

        self.law(case, law)

    @pytest.mark.release
    def test_in_float64(self, any_case):
        """All implementations in float64 against the oracle, and float32 against them element by element."""
        case, (first, *others) = any_case, self.implementations

        def law(drawn):
            if others and case != self.first_case():  # whose gradients `test_the_reference` has
                self.check(self.run(*drawn[:3], case, first, gradients=False), drawn, first)
            for name in others or [first]:
                exact = self.check_all(drawn, case, name, "float64").gradients
                low = self.check_all(drawn, case, name, "float32").gradients
                assert_close(low, exact, FLOAT32_GRADIENT, f"{name}: gradient", magnitude=0.1)
                if others and case == self.first_case():
                    reference = self.run(*drawn[:3], case, first).gradients
                    assert_close(exact, reference, FLOAT64, f"{name}: gradient", magnitude=0.1)

        self.law(case, law)

    def programs(self, case: Any) -> list[tuple[str, str]]:
        """Implementations and dtypes that the tests above compile in `make check`."""
        first, *others = self.implementations
        reference = [(first, "float64")] if others and case == self.first_case() else []
        return reference + [(name, "float32") for name in others or [first]]

    def test_split(self, case):
        """Two calls, each row cut anywhere, also by different implementations, equal one call."""

        def law(drawn, cut):
            arrays, at, weights = drawn[:3]
            cut = np.minimum(cut, at.counts)
            masks = [draw.mask(count, at.mask.shape[1]) for count in (cut, at.counts - cut)]
            rolled = {name: roll(arrays[name], cut) for name in self.moving(arrays, case)}
            for names in itertools.product(self.programs(case), repeat=2):
                head = self.run(arrays, at._replace(mask=masks[0]), weights, case, *names[0])
                then = at._replace(segment_ids=roll(at.segment_ids, cut), mask=masks[1], **head.stream)
                tail = self.run(arrays | rolled | head.state, then, weights, case, *names[1])
                y = where(masks[0], head.y, roll(tail.y, -cut))
                dtype = min(name[1] for name in names)  # the narrower
                self.check(tail._replace(y=where(at.mask, y, 0)), drawn, f"{names}", dtype)

        self.law(case, law, draw.counts(*case.sizes[:2]))

    @pytest.mark.release
    def test_shorter_calls(self, bare):
        """Two calls with fewer tokens, the second with one, by any implementation, equal one call."""
        case, last = bare, self.implementations[-1]

        def law(drawn):
            for name in self.implementations:
                (arrays, at, weights), outputs = drawn[:3], []
                for part, by in ((slice(case.sizes[1] - 1), last), (slice(case.sizes[1] - 1, None), name)):
                    piece = {name: drawn.arrays[name][:, part] for name in self.moving(drawn.arrays, case)}
                    here = at._replace(segment_ids=at.segment_ids[:, part], mask=at.mask[:, part])
                    weigh = weights | {"y": weights["y"][:, part]}
                    result = self.run(arrays | piece, here, weigh, case, by, gradients=False)
                    outputs.append(result.y)
                    arrays, at = arrays | result.state, at._replace(**result.stream)
                self.check(result._replace(y=np.concatenate(outputs, axis=1)), drawn, f"{last}, {name}")

        self.law(case, law)

    def test_segments(self, case):
        """Packed documents equal each document alone; an id may come back for another document."""

        def law(drawn):
            arrays, at, weights = drawn[:3]
            starts = [np.flatnonzero(begins).tolist() for begins in at.begins]
            packs = {name: self.run(*drawn[:3], case, *name) for name in self.programs(case)}
            for number in range(max(map(len, starts))):
                edges = [
                    [*row, *[count] * (number + 2)][number : number + 2]
                    for row, count in zip(starts, at.counts, strict=True)
                ]
                begin, end = np.array(edges).T
                rolled = {name: roll(arrays[name], begin) for name in self.moving(arrays, case)}
                mask = draw.mask(end - begin, at.mask.shape[1])
                alone = at._replace(segment_ids=roll(at.segment_ids, begin), mask=mask)
                there = roll(mask, -begin)
                last = np.array([len(row) == number + 1 for row in starts])
                for name, pack in packs.items():
                    document = self.run(arrays | rolled, alone, weights, case, *name)
                    tolerance = FLOAT64 if name[1] == "float64" else FLOAT32
                    ys = [where(there, y, 0) for y in (roll(document.y, -begin), pack.y)]
                    assert_close(*ys, tolerance, f"{name}: document {number}")
                    if self.forgets:
                        states = [
                            {key: where(last, x, 0) for key, x in result.state.items()}
                            for result in (document, pack)
                        ]
                        assert_close(*states, tolerance, f"{name}: state after document {number}")

        self.law(case, law, count=3, fresh=True)  # of as many calls as a row has documents

    def test_padding(self, case):
        """What stands at padded tokens, NaN too, changes nothing but the gradients there."""

        def law(drawn, junk):
            arrays, at, weights = drawn[:3]
            noisy = arrays | {name: where(at.mask, arrays[name], junk) for name in self.moving(arrays, case)}
            elsewhere = at._replace(segment_ids=np.where(at.mask, at.segment_ids, 7 * self.segments))
            for name in self.programs(case):
                clean = self.run(arrays, at, weights, case, *name)
                result = self.run(noisy, elsewhere, weights, case, *name)
                if not self.zero_padding:
                    result = result._replace(y=where(at.mask, result.y, 0))
                self.check(result, drawn, *name)
                for key in self.moving(arrays, case):
                    result.gradients[key] = where(at.mask, result.gradients[key], 0)
                    clean.gradients[key] = where(at.mask, clean.gradients[key], 0)
                clean = clean._replace(y=where(at.mask, clean.y, 0))
                assert_close(result, clean, 0, f"{name}")

        self.law(case, law, st.sampled_from(self.junk))

    def test_causality(self, case):
        """Other tokens from t on change no output before t, and change the one at t."""

        def law(drawn, t, seed):
            arrays, at, weights = drawn[:3]
            others = self.arrays(np.random.default_rng([seed, 1]), case)
            later = np.arange(case.sizes[1])[None] >= t
            moving = self.moving(arrays, case)
            changed = arrays | {name: where(later, others[name], arrays[name]) for name in moving}
            for name in self.programs(case):
                before, after = (self.run(x, at, weights, case, *name).y for x in (arrays, changed))
                assert np.array_equal(before[:, :t], after[:, :t]), name
                nothing = not before[:, t].any()  # as where a token sees none
                assert nothing or not np.array_equal(before[:, t], after[:, t]), name

        self.law(case, law, st.integers(0, case.sizes[1] - 1), draw.seeds, full=True)

    def first_case(self) -> Any:
        return getattr(self.cases[0], "values", (self.cases[0],))[0]

    def alone(self, at: Placement) -> Placement:
        """One document in each row from its begin to its end."""
        ids = 0 * at.segment_ids
        return at._replace(segment_ids=ids, mask=ids == 0, **nowhere(len(ids)))

    def test_bfloat16(self):
        """Without ids, mask and state: values of the rounded inputs, and sums in float32."""
        case, name = self.first_case(), self.implementations[-1]

        def law(drawn):
            low = {name: x for name, x in drawn.arrays.items() if name not in self.wide}
            rounded = {name: np.asarray(np.asarray(x, "bfloat16"), np.float64) for name, x in low.items()}
            rounded = drawn.arrays | rounded
            y, state = self.oracle(rounded | self.empty(rounded, case), self.alone(drawn.at), case)
            result = self.run(
                drawn.arrays, Placement(), drawn.weights, case, name, "bfloat16", gradients=False
            )
            assert result.y.dtype == "bfloat16"
            assert {x.dtype for x in result.state.values()} <= {np.dtype(self.low_state)}
            assert_close(
                (result.y, result.state), (y, {name: state[name] for name in result.state}), BFLOAT16
            )

        self.law(case, law, full=True)

    @pytest.mark.release
    def test_without_a_placement(self, bare):
        """None for ids, mask and state is what their values are that say nothing; gradients of the last."""

        def law(drawn):
            arrays, weights = drawn.arrays, drawn.weights
            for name in self.implementations:
                last = name == self.implementations[-1]
                result = self.run(arrays, Placement(), weights, bare, name, gradients=last)
                weights |= {name: 0 * weights[name] for name in self.state if name not in result.state}
                expected = self.run(arrays, self.alone(drawn.at), weights, bare, name)
                expected = expected._replace(
                    state={name: expected.state[name] for name in result.state},
                    stream=result.stream and expected.stream,
                    gradients=result.gradients and expected.gradients,
                )
                assert_close(result, expected, FLOAT64, magnitude=0.1)

        self.law(bare, law, fresh=True, full=True)
