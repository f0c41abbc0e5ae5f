"""The one way through an op is short: few frames of this package from a call to its first product."""

import traceback

import jax
import pytest
from jax.extend.core import Primitive

from based_jax import ops
from based_jax.ops.core.op import body, op
from tests.arrays import ones
from tests.subprocesses import ROOT
from tests.test_eager import CALLS, Q

FRAMES = 9
"""from an op to its first product, inside `jit`; outside there is one more, of the compiled function"""


class FoundError(Exception):
    """Carries the stack at a program's first product."""


@pytest.fixture
def stack(monkeypatch):
    """A function that returns our frames at the first product of a call; none if it has no product."""
    bind = Primitive.bind

    def watched(self, *args, **params):
        if self is jax.lax.dot_general_p:
            raise FoundError(traceback.extract_stack())
        return bind(self, *args, **params)

    def read(function, *arrays):
        try:
            function(*arrays)
        except FoundError as error:
            ours = str(ROOT / "based_jax")
            return [
                f"{frame.filename}:{frame.name}" for frame in error.args[0] if frame.filename.startswith(ours)
            ]
        return []

    with monkeypatch.context() as patch:
        patch.setattr(Primitive, "bind", watched)
        yield read


def test_frames_to_the_first_product(stack):
    frames = {name: stack(jax.eval_shape, *call) for name, call in CALLS.items()}
    assert sum(map(bool, frames.values())) > 15, "few have a product"
    long = {name: found for name, found in frames.items() if len(found) > FRAMES}
    assert not long


def test_frames_outside_jit(stack):
    q = ones((1, 3, 1, 11))  # of a size that no other test has traced
    assert 0 < len(stack(ops.taylor_attention, q, q, q)) <= FRAMES + 1


def test_an_op_that_builds_on_another_calls_its_body():
    seen = []

    @op()
    def inner(x):
        seen.append(jax.typeof(x))
        return 2 * x

    @op()
    def outer(x):
        return body(inner)(x)

    assert body(inner) is not inner
    assert body(jax.numpy.sin) is not None
    outer(Q)
    outer(Q)
    assert len(seen) == 1, "compiled once"
