"""Whether a mixer obeys the contract of `based_jax.mixers.Mixer`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from based_jax.mixers import Mixer
from based_jax.mixers.module import find_stream
from based_jax.testing import laws
from based_jax.testing.arrays import assert_close
from based_jax.validate import expect

CHUNK = 64
"""Longest chunk that the laws see two and a half of, unless the mixer has a longer `chunk_size`"""

BORDERS = (16, 24, 32, 64)
"""Tokens after which rows are cut, besides at the mixer's own chunk"""


@dataclass(frozen=True)
class _Check:
    """A mixer, and the rows and cuts that the laws use."""

    run: laws.Runner
    exact: bool
    length: int
    """tokens of a row"""
    borders: tuple[int, ...]
    """ascending indices of tokens at which a chunk may begin"""

    def drawn(self, seed: int) -> np.ndarray:
        return laws.inputs(laws.ROWS, self.length, self.run.mixer.d_model, seed)

    def sizes(self, *cuts: int) -> list[int]:
        """Return the sizes of the parts of a row that is cut at these tokens."""
        return np.diff([0, *cuts, self.length]).tolist()


def check_mixer(
    mixer: type[Mixer],
    *,
    d_model: int = 12,
    tolerance: float = laws.TOLERANCE,
    exact: bool = True,
    length: int | None = None,
    **options: Any,
) -> None:
    """Check that a mixer obeys the contract: what it returns, the five laws, gradients and bfloat16.

    Parameters are drawn at random, far from their initial values. The checks take seconds on a
    CPU, most of them for compiling.

    Args:
        mixer: the class. It must be causal, have a state and need no token ids.
        d_model: width to test with.
        tolerance: largest difference between two ways to compute the same, relative to the largest output.
        exact: later tokens must not change earlier outputs at all; False allows `tolerance`, for those mixers
            that use an FFT of whole rows.
        length: tokens of the rows, at least 16. A fault that only shows after more tokens is not found. The
            default is two and a half chunks of 64 tokens, or of the mixer's `chunk_size` if it is larger.
        options: of the mixer.

    Raises:
        AssertionError: the mixer breaks a law, named in the message.
        ValueError: a mixer whose laws are others: not causal, without a state, or one that wants token ids.
    """
    built = mixer(d_model=d_model, **options)
    for name, wanted in (("causal", True), ("stateful", True), ("packing", True), ("wants_tokens", False)):
        expect(getattr(built, name) == wanted, f"{mixer.__name__}.{name}", getattr(built, name), str(wanted))
    own = getattr(built, "chunk_size", None)
    chunk = max(own, CHUNK) if isinstance(own, int) else CHUNK
    length = 5 * chunk // 2 + 1 if length is None else length
    expect(length >= LEAST, "length", length, f"at least {LEAST}")
    borders = tuple(sorted({border for border in (8, *BORDERS, chunk, 2 * chunk) if border < length - 4}))
    check = _Check(laws.Runner(built, tolerance, 3 * length), exact, length, borders)
    for name, law in _CHECKS.items():
        try:
            law(check)
        except AssertionError as error:
            raise AssertionError(f"{mixer.__name__} breaks the contract: {name}: {error}") from error


LEAST = 16
"""Fewest tokens that the laws cut as they need"""


def _returns(check: _Check) -> None:
    run, x = check.run, check.drawn(0)
    mixer, state = run.mixer, run.fresh(laws.ROWS)
    assert find_stream(state) is not None, (
        f"a state without a `based_jax.ops.Stream` ({type(state).__name__}); "
        "start it with `init_stream` in `empty_state` and return `context.stream`"
    )
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state) if leaf.size]
    assert len(set(pointers)) == len(pointers), "a fresh state with one array twice, which cannot be donated"
    floats = mixer.state_size(100)
    assert isinstance(floats, int), f"state_size(100) = {floats!r}, expected an integer"
    y, nothing = jax.eval_shape(mixer.apply, run.variables, x)
    chex.assert_shape(y, x.shape, custom_message="outputs")
    assert nothing is None, "a call without a state returned one, expected None"
    _, after = jax.eval_shape(mixer.apply, run.variables, x, state)
    why = "the states before and after a call: lax.scan needs equal shapes and dtypes"
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after, custom_message=why)


def _steps(check: _Check) -> None:
    laws.padding_law(check.run, check.drawn(1), [check.length] * laws.ROWS, check.drawn(6))  # no padding


def _split(check: _Check) -> None:
    length, last = check.length, check.borders[-1]
    mask = np.arange(length) < np.array([[length], [last + 3]])
    ids = np.searchsorted(check.borders, np.arange(length), side="right") % 3  # an id occurs again later
    documents = np.broadcast_to(ids, (laws.ROWS, length))
    for cuts in [(1,), (length - 1,), *((border + i,) for border in check.borders for i in (-1, 0, 1))]:
        laws.split_law(check.run, check.drawn(2), check.sizes(*cuts))
        laws.split_law(check.run, check.drawn(3), check.sizes(*cuts), mask=mask, segment_ids=documents)
    laws.split_law(check.run, check.drawn(2), check.sizes(*check.borders))


def _segments(check: _Check) -> None:
    first, last = check.borders[0], check.borders[-1]
    for cuts in ((1,), (first - 2, first - 1), check.borders, (last + 1,)):
        laws.segment_law(check.run, check.drawn(4), check.sizes(*cuts))


def _padding(check: _Check) -> None:
    for border in check.borders:
        laws.padding_law(check.run, check.drawn(5), [border, border + 1], check.drawn(6))
    length, last = check.length, check.borders[-1]
    for lengths, before in (
        ([length, 1], [0, 0]),
        ([0, last - 1], [0, 0]),
        ([last, length - last - 1], [length - last, last]),
    ):
        laws.padding_law(check.run, check.drawn(5), lengths, check.drawn(6), before)


def _calls(check: _Check) -> None:
    """Check the forms of calls that the other laws leave out, see `laws.LENGTH`."""
    run, x, length = check.run, check.drawn(11), check.length
    whole = laws.packed(run, x)
    half = length // 2  # without mask and ids: one row in two calls of a program, then several rows
    first, state = run(x[:1, :half], run.fresh(1))
    rest, _ = run(x[:1, half : 2 * half], state)
    assert_close(np.concatenate([first, rest], axis=1), whole[:1, : 2 * half], run.tolerance)
    first, two = run(x[:, :2], run.fresh(laws.ROWS))
    assert_close(first, whole[:, :2], run.tolerance)
    ids = np.repeat([[0, 1]], [3, length - 3], axis=1).repeat(laws.ROWS, axis=0)
    assert_close(run(x, segment_ids=ids)[0], laws.packed(run, x, segment_ids=ids), run.tolerance)
    mask = np.arange(length) < np.array([[length], [6]])
    assert_close(run(x, mask=mask)[0][mask], whole[mask], run.tolerance)
    _, state = run(x[:, 2:3], two, mask=np.array([[True], [False]]))  # the second row waits
    y, _ = run(np.stack([x[0, 3:4], x[1, 2:3]]), state)
    assert_close(y[:, 0], np.stack([whole[0, 3], whole[1, 2]]), run.tolerance)
    y, _ = run(x[:, 3:4], state, segment_ids=np.ones((laws.ROWS, 1), int))  # both rows begin a document
    assert_close(y, run(x[:, 3:4], run.fresh(laws.ROWS))[0], run.tolerance)
    positions = np.arange(length)[None].repeat(laws.ROWS, axis=0)  # passed, they begin no document
    y = laws.packed(run, x, segment_ids=ids, positions=positions)[:, 3:]
    mask, x, positions = positions < length - 3, np.roll(x, -3, axis=1), np.roll(positions, -3, axis=1)
    assert_close(y, laws.packed(run, x, mask=mask, positions=positions)[:, :-3], run.tolerance)


def _causality(check: _Check) -> None:
    laws.causality(
        check.run, check.drawn(7), *range(check.length), tolerance=0.0 if check.exact else check.run.tolerance
    )


def _containment(check: _Check) -> None:
    for border in check.borders:
        begin, bad, end = border - 3, border - 1, border + 2
        for cut in (border - 2, border, end):
            laws.containment(check.run, check.drawn(8), cut, begin, bad, end)


def _gradients(check: _Check) -> None:
    run, real = check.run, check.borders[-1] + 1
    mask = np.arange(check.length) < np.array([[check.length], [real]])

    def loss(variables: Any, x: Any) -> Any:
        y, _ = run.mixer.apply(variables, x, mask=mask)
        return jnp.sum(jnp.where(mask[..., None], y, 0) ** 2)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), compiler_options=laws.QUICKLY)
    of_variables, of_x = gradient(run.variables, jnp.asarray(check.drawn(9)))
    chex.assert_tree_all_finite((of_variables, of_x), custom_message="gradients")
    assert not np.any(np.asarray(of_x)[1, real:]), "padding has a gradient"
    assert np.any(of_x), "the inputs have no gradient"


def _bfloat16(check: _Check) -> None:
    x = check.drawn(10)
    low = check.run.mixer.clone(dtype=jnp.bfloat16)
    y, _ = jax.jit(low.apply, compiler_options=laws.QUICKLY)(check.run.variables, x)
    assert y.dtype == jnp.bfloat16, f"outputs of dtype {y.dtype} with dtype = bfloat16"
    wanted = laws.packed(check.run, x)
    error = np.linalg.norm(np.asarray(y, np.float32) - wanted) / np.linalg.norm(wanted)
    assert error < 0.05, f"an error of {error:.1%}"
    state = low.init_state(laws.ROWS, check.run.max_length)
    _, after = jax.eval_shape(low.apply, check.run.variables, x, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after, custom_message="the states before and after")


_CHECKS: dict[str, Callable[[_Check], None]] = {
    "what a call returns": _returns,
    "causality": _causality,
    "one token at a time": _steps,
    "padding law": _padding,  # first, since the split law cuts rows by masks
    "split law": _split,
    "segment law": _segments,
    "calls of all forms": _calls,
    "containment of NaN and infinities": _containment,
    "gradients": _gradients,
    "bfloat16": _bfloat16,
}
