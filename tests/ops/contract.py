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
passes ids of 0, a mask of True and the state of rows without tokens. So a row is cut, and a document
taken out of its pack, by rolling tokens to the front and masking the rest. `test_without_a_placement` passes
None instead. An op that does not have or promise something sets its test to None: `test_split = None`.
"""

import itertools

import numpy as np
import pytest
from hypothesis import strategies as st

from pallas_kernels import interpreted
from tests.ops import draw
from tests.ops.declared import Declared
from tests.ops.placement import Placement, roll, where
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, FLOAT64, assert_close


class Contract(Declared):
    """Subclassed once per op, or per form of an op."""

    def test_the_reference(self, each):
        """The first implementation in float64 is the oracle; of the first case its gradients too."""
        name = self.implementations[0]

        def law(drawn):
            if each == self.first_case():
                self.check_all(drawn, each, name, "float64")
            else:
                self.check(self.run(*drawn[:3], each, name, gradients=False), drawn, name)

        self.law(each, law)

    def test_values_states_and_gradients(self, any_case):
        """The others in float32, against the oracle, and the reference's gradients element by element."""
        first, *others = self.implementations

        def law(drawn):
            for name in others or [first]:
                low = self.check_all(drawn, any_case, name, "float32").gradients
                if others and any_case == self.first_case():
                    exact = self.run(*drawn[:3], any_case, first).gradients
                    assert_close(low, exact, FLOAT32_GRADIENT, f"{name}: gradient", magnitude=0.1)

        self.law(any_case, law)

    @pytest.mark.slow
    def test_in_float64(self):
        """The others in float64; `test_without_a_placement` has gradients."""
        case, (first, *others) = self.first_case(), self.implementations

        def law(drawn):
            for name in others or [first]:
                self.check(self.run(*drawn[:3], case, name, gradients=False), drawn, name)

        self.law(case, law)

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
    def test_one_token(self, bare):
        """A call whose last token is masked, and a call with that token alone, equal one call."""
        name, dtype = self.programs(bare)[-1]

        def law(drawn):
            arrays, at, weights = drawn[:3]
            masks = at.mask & (np.arange(bare.sizes[1]) < bare.sizes[1] - 1), at.mask[:, -1:]
            head = self.run(arrays, at._replace(mask=masks[0]), weights, bare, name, dtype)
            last = {key: arrays[key][:, -1:] for key in self.moving(arrays, bare)}
            then = at._replace(segment_ids=at.segment_ids[:, -1:], mask=masks[1], **head.stream)
            weigh = weights | {"y": weights["y"][:, -1:]}
            tail = self.run(arrays | last | head.state, then, weigh, bare, name, dtype, gradients=False)
            y = np.concatenate([head.y[:, :-1], tail.y], axis=1)
            self.check(tail._replace(y=y), drawn, name, dtype)

        self.law(bare, law)

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
        """What stands at padded tokens, NaN too, changes nothing but gradients there; nor where they are."""

        def law(drawn, junk):
            arrays, at, weights = drawn[:3]
            noisy = arrays | {name: where(at.mask, arrays[name], junk) for name in self.moving(arrays, case)}
            elsewhere = at._replace(segment_ids=np.where(at.mask, at.segment_ids, 7 * self.segments))
            before = at.mask.shape[1] - at.counts  # in every second row half of the padding
            before //= 1 + np.arange(len(before)) % 2
            right = noisy | {name: roll(noisy[name], -before) for name in self.moving(arrays, case)}
            to_right = elsewhere._replace(
                segment_ids=roll(elsewhere.segment_ids, -before), mask=roll(at.mask, -before)
            )
            weigh = weights | {"y": roll(weights["y"], -before)}
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
                moved = self.run(right, to_right, weigh, case, *name)
                moved = moved._replace(y=where(at.mask, roll(moved.y, before), 0))
                for key in self.moving(arrays, case):
                    moved.gradients[key] = where(at.mask, roll(moved.gradients[key], before), 0)
                assert_close(moved, clean, 0, f"{name}: padding before the tokens")

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
        last = self.implementations[-1]

        def law(drawn):
            at, (arrays, _, weights) = self.alone(drawn.at), drawn[:3]
            y, state = self.oracle(arrays, at, bare)
            for name in self.implementations:
                result = self.run(arrays, Placement(), weights, bare, name, gradients=name == last)
                weigh = weights | {key: 0 * weights[key] for key in state.keys() - result.state.keys()}
                told = drawn._replace(at=at, weights=weigh, y=y, state=state)
                self.check(result, told, name)
                if name == last:
                    self.check_gradients(result, told, bare, name, "float64")

        self.law(bare, law, fresh=True, full=True)


class Interpreted:
    """Before a `Contract`: its laws for the fused kernel in the interpreter, which has no float64."""

    implementations = ("pallas",)
    examples = 2
    test_the_reference = test_in_float64 = test_one_token = None
    test_without_a_placement = test_bfloat16 = None

    def run(self, *arguments, **options):
        with interpreted():  # the gradient, too, is traced inside
            return super().run(*arguments, **options)
