"""Section `tune`: other block sizes of each kernel, in turns with those in use.

Candidates whose results differ are refused. `python -m benchmarks adopt` adds the fastest ones to the tables.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import jax
import jax.numpy as jnp

from benchmarks.gpu.cases import catalog
from benchmarks.gpu.cases import taylor_attention as attention
from benchmarks.gpu.cases.case import Case
from benchmarks.gpu.sections.session import Session, Step
from benchmarks.gpu.sections.stopwatch import Candidate, Prepared, jitted

HEADLINE = "K16 V64 bfloat16"
"""The most important shape: a head of Based-360M."""

TOGETHER = 8
"""Candidates of a case that take turns with its current choice."""

AGREEMENT = 0.03
"""Tolerance: largest difference from the current choice's results over the largest one. Variants round
bfloat16 operands in another order, which gives some 0.005; a wrong index gives far more."""

QUICK = attention.Sizes(batch=1, length=130, heads=1, block=64)


def steps(session: Session) -> list[Step]:
    """List a step per shape and batch of variants: some 4,700 variants of 146 shapes."""
    if session.quick:
        cases = attention.cases([(16, 64, "bfloat16")], QUICK)
        listed = [case.candidates()[:3] for case in cases if case.kernel in ("outputs", "dv")][:2]
    else:
        listed = [case.candidates() for case in sorted(catalog.cases(), key=rank)]
    return [Step(name, candidates=functools.partial(_rows, cases)) for name, cases in batches(listed)]


def rank(case: Case) -> int:
    """Return a sort key: lower is measured earlier."""
    if case.op == "taylor_attention" and case.shape.startswith(HEADLINE):
        return 0
    return 1 if case.op != "taylor_attention" else 3 if case.on_request else 2


def batches(listed: Sequence[Sequence[Case]]) -> Iterator[tuple[str, list[Case]]]:
    """Yield the name of a step, and a case's current choice with up to `TOGETHER` others.

    For all cases first those that differ from it in one field, then those that differ in two, and so on.
    """
    most = max((_changes(case, cases[0]) for cases in listed for case in cases), default=0)
    for changes in range(1, most + 1):
        for current, *others in listed:
            chosen = [case for case in others if _changes(case, current) == changes]
            for first in range(0, len(chosen), TOGETHER):
                name = f"{current.op}/{current.kernel} {current.shape}, {changes} changed, from {first}"
                yield name, [current, *chosen[first : first + TOGETHER]]


def _changes(case: Case, current: Case) -> int:
    """Return the number of fields in which the variants of two candidates differ."""
    pairs = zip(asdict(case.variant).values(), asdict(current.variant).values(), strict=True)
    return sum(one != other for one, other in pairs)


def _rows(cases: Sequence[Case], _: Session) -> list[Candidate]:
    current = cases[0]
    shared = functools.cache(functools.partial(example, current))

    def make() -> list[jax.Array]:
        return [jnp.copy(x) if i in current.carried else x for i, x in enumerate(shared())]

    def prepare(case: Case) -> Prepared:
        return jitted(case.function, case.arguments, case.carried, make=make)

    return [
        Candidate(
            str(case.variant),
            functools.partial(prepare, case),
            {"op": case.op, "when": case.facts, "variant": asdict(case.variant)},
            ours=case is current,
            agreement=AGREEMENT,
        )
        for case in cases
    ]


def example(case: Case) -> list[jax.Array]:
    """Return arguments: random floats from 0 to 1; integers are the argument's value in `fill`, or zeros.

    With both signs a normaliser might be near 0 and amplify harmless rounding errors.
    """
    keys = jax.random.split(jax.random.key(0), len(case.arguments))
    return [
        jax.random.uniform(key, x.shape, x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else jnp.full(x.shape, case.fill.get(i, 0), x.dtype)
        for i, (key, x) in enumerate(zip(keys, case.arguments, strict=True))
    ]
