"""Whether a mixer obeys the contract of `based_jax.mixers.Mixer`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.mixers import Mixer
from based_jax.mixers.context import find_stream
from based_jax.testing import laws
from based_jax.testing.compare import assert_close
from based_jax.validate import expect


def check_mixer(
    mixer: type[Mixer],
    *,
    d_model: int = 12,
    tolerance: float = laws.TOLERANCE,
    exact: bool = True,
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
        options: of the mixer.

    Raises:
        AssertionError: the mixer breaks a law, named in the message.
        ValueError: a mixer whose laws are others: not causal, without a state, or one that wants token ids.
    """
    for name, wanted in (("causal", True), ("stateful", True), ("packing", True), ("wants_tokens", False)):
        expect(getattr(mixer, name) == wanted, f"{mixer.__name__}.{name}", getattr(mixer, name), str(wanted))
    run = laws.Runner(mixer(d_model=d_model, **options), tolerance)
    for name, check in _CHECKS.items():
        try:
            check(run, exact)
        except AssertionError as error:
            raise AssertionError(f"{mixer.__name__} breaks the contract: {name}: {error}") from error


def _drawn(run: laws.Runner, seed: int) -> np.ndarray:
    return laws.inputs(laws.ROWS, laws.LENGTH, run.mixer.d_model, seed)


def _returns(run: laws.Runner, exact: bool) -> None:
    x, mixer = _drawn(run, 0), run.mixer
    state = run.fresh(laws.ROWS)
    assert find_stream(state) is not None, (
        f"a state without a `based_jax.ops.Stream` ({type(state).__name__}); "
        "start it with `init_stream` in `empty_state` and return `context.stream`"
    )
    floats = mixer.state_size(100)
    assert isinstance(floats, int), f"state_size(100) = {floats!r}, expected an integer"
    y, nothing = jax.eval_shape(mixer.apply, run.variables, x)
    assert y.shape == x.shape, f"outputs of shape {y.shape}, expected {x.shape}"
    assert nothing is None, "a call without a state returned one, expected None"
    _, after = jax.eval_shape(mixer.apply, run.variables, x, state)
    before, after = ([(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)] for tree in (state, after))
    assert before == after, (
        f"a state of {after} after one of {before}: lax.scan needs equal shapes and dtypes"
    )


def _steps(run: laws.Runner, exact: bool) -> None:
    laws.padding_law(run, _drawn(run, 1), [laws.LENGTH] * laws.ROWS, _drawn(run, 6))  # rows without padding


def _split(run: laws.Runner, exact: bool) -> None:
    mask = np.arange(laws.LENGTH) < np.array([[laws.LENGTH], [11]])
    for sizes in ([1, 6, 6], [6, 6, 1], [6, 7], [7, 6], [8, 5]):
        laws.split_law(run, _drawn(run, 2), sizes)
        laws.split_law(run, _drawn(run, 3), sizes, mask=mask, segment_ids=laws.PACKED)


def _segments(run: laws.Runner, exact: bool) -> None:
    for lengths in ([1, 12], [6, 1, 6], [3, 3, 3, 4]):
        laws.segment_law(run, _drawn(run, 4), lengths)


def _padding(run: laws.Runner, exact: bool) -> None:
    for lengths in ([13, 1], [0, 7]):
        laws.padding_law(run, _drawn(run, 5), lengths, _drawn(run, 6))


def _causality(run: laws.Runner, exact: bool) -> None:
    for t in (0, 1, 6, 12):
        laws.causality(run, _drawn(run, 7), t, 0.0 if exact else run.tolerance)


def _containment(run: laws.Runner, exact: bool) -> None:
    for cut in (5, 7, 9):
        laws.containment(run, _drawn(run, 8), cut)


def _gradients(run: laws.Runner, exact: bool) -> None:
    mask = np.arange(laws.LENGTH) < np.array([[laws.LENGTH], [7]])

    def loss(variables: Any, x: Any) -> Any:
        y, _ = run.mixer.apply(variables, x, mask=mask)
        return jnp.sum(jnp.where(mask[..., None], y, 0) ** 2)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), compiler_options=laws.QUICKLY)
    of_variables, of_x = gradient(run.variables, jnp.asarray(_drawn(run, 9)))
    for path, leaf in jax.tree_util.tree_leaves_with_path((of_variables, of_x)):
        assert np.isfinite(leaf).all(), f"gradient that is not finite at {jax.tree_util.keystr(path)}"
    assert not np.any(np.asarray(of_x)[1, 7:]), "padding has a gradient"
    assert np.any(of_x), "the inputs have no gradient"


def _bfloat16(run: laws.Runner, exact: bool) -> None:
    x = _drawn(run, 10)
    low = run.mixer.clone(dtype=jnp.bfloat16)
    y, _ = jax.jit(low.apply, compiler_options=laws.QUICKLY)(run.variables, x)
    assert y.dtype == jnp.bfloat16, f"outputs of dtype {y.dtype} with dtype = bfloat16"
    assert_close(np.asarray(y, np.float32), laws.packed(run, x), 0.05)


_CHECKS: dict[str, Callable[[laws.Runner, bool], None]] = {
    "what a call returns": _returns,
    "causality": _causality,
    "one token at a time": _steps,
    "padding law": _padding,  # first, since the split law cuts rows by masks
    "split law": _split,
    "segment law": _segments,
    "containment of NaN and infinities": _containment,
    "gradients": _gradients,
    "bfloat16 (5 %)": _bfloat16,
}
