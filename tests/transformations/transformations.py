"""The transformations, each as a check of one function: the numbers are those of the function itself."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.tolerances import FLOAT32, FLOAT32_GRADIENT, assert_close
from tests.transformations.subjects import Subject


def floats(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def plain(tree: Any) -> list[np.ndarray]:
    """Arrays without keys."""
    leaves = jax.tree.leaves(tree)
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in leaves
    ]


def split(subject: Subject) -> tuple[list[Any], Callable[..., Any]]:
    """Return the real arrays, and `total` as a function of those."""
    moving = [jnp.issubdtype(x.dtype, jnp.floating) for x in subject.arrays]

    def total(*values: Any) -> Any:
        rest = iter(values)
        merged = (next(rest) if yes else x for x, yes in zip(subject.arrays, moving, strict=True))
        return sum((jnp.sin(leaf).sum() for leaf in floats(subject(*merged))), jnp.zeros(()))

    return [x for x, yes in zip(subject.arrays, moving, strict=True) if yes], total


@functools.cache
def expected(subject: Subject) -> Any:
    return plain(jax.jit(subject.function)(*subject.arrays))


@functools.cache
def gradient(subject: Subject) -> Callable[[], tuple[Any, ...]]:
    """The gradients of `total`, compiled once; none of integers."""
    values, total = split(subject)
    compiled = jax.jit(jax.grad(total, argnums=tuple(range(len(values)))))
    return lambda: compiled(*values) if values else ()


@functools.cache
def slopes(subject: Subject) -> Any:
    return jax.device_get(gradient(subject)())


def stacked(subject: Subject) -> list[Any]:
    return [jnp.stack([x, x]) for x in subject.arrays]


def vmap(subject: Subject) -> None:
    found = jax.jit(jax.vmap(subject.function))(*stacked(subject))
    assert_close([leaf[1] for leaf in plain(found)], expected(subject), FLOAT32)


def scan(subject: Subject) -> None:
    def step(carry: Any, x: Any) -> Any:
        return carry, subject(*x)

    _, found = jax.jit(lambda *rows: lax.scan(step, None, rows))(*stacked(subject))
    assert_close([leaf[1] for leaf in plain(found)], expected(subject), FLOAT32)


def checkpoint(subject: Subject) -> None:
    values, total = split(subject)
    found = jax.jit(jax.grad(jax.checkpoint(total), argnums=tuple(range(len(values)))))(*values)
    assert_close(found, slopes(subject), FLOAT32_GRADIENT)


def directions(values: Any) -> tuple[Any, ...]:
    generator = np.random.default_rng(3)
    return tuple(jnp.asarray(generator.normal(size=x.shape), x.dtype) for x in values)


def along(subject: Subject, found: Any) -> None:
    """A derivative along `directions` is the product with the gradients."""
    pairs = zip(slopes(subject), directions(split(subject)[0]), strict=True)
    terms = np.concatenate([np.ravel(slope * t) for slope, t in pairs])
    assert_close(found, terms.sum(), FLOAT32_GRADIENT, magnitude=float(np.abs(terms).sum()))


def jvp(subject: Subject) -> None:
    values, total = split(subject)
    along(subject, jax.jit(lambda x, t: jax.jvp(total, x, t)[1])(tuple(values), directions(values)))


def linearize(subject: Subject) -> None:
    values, total = split(subject)
    along(subject, jax.jit(lambda x, t: jax.linearize(total, *x)[1](*t))(values, directions(values)))


def x64(subject: Subject) -> None:
    before = expected(subject)
    with jax.enable_x64(True):
        found = plain(jax.jit(subject.function)(*subject.arrays))
    assert [x.dtype for x in floats(found)] == [x.dtype for x in floats(before)]
    assert_close(found, before, FLOAT32)


def rank_promotion(subject: Subject) -> None:
    with jax.numpy_rank_promotion("raise"):
        jax.eval_shape(subject.function, *subject.arrays)


def debug_nans(subject: Subject) -> None:
    slopes(subject)
    with jax.debug_nans(True):
        found, of_total = subject(*subject.arrays), gradient(subject)()
    assert_close(plain(found), expected(subject), FLOAT32)
    assert_close(of_total, slopes(subject), FLOAT32_GRADIENT)


def debug_nans_inside(subject: Subject) -> None:
    """Each operation is checked."""
    values, total = split(subject)
    with jax.debug_nans(True), jax.disable_jit():
        found = subject(*subject.arrays)
        of_total = jax.grad(total, argnums=tuple(range(len(values))))(*values) if values else ()
    assert_close(plain(found), expected(subject), FLOAT32)
    assert_close(of_total, slopes(subject), FLOAT32_GRADIENT)


def transfer_guard(subject: Subject) -> None:
    """Outside `jit`: nothing is sent to the device at every call, not even a number."""
    with jax.transfer_guard("disallow"):
        subject(*subject.arrays)


OF_DERIVATIVES = ("checkpoint", "jvp", "linearize")
"""Integers have none."""

CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        vmap,
        scan,
        checkpoint,
        jvp,
        linearize,
        x64,
        rank_promotion,
        debug_nans,
        debug_nans_inside,
        transfer_guard,
    )
}
