"""Time calls on a device: compiled side by side, warmed up, in turns, each sample ended by a wait."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax

from benchmarks.gpu_sections.session import Session, Sizing
from benchmarks.timing import calls_per_sample, in_turn, seconds_per_call
from pallas_kernels.flags import one_line
from pallas_kernels.journal import BROKE

LONGEST_SECONDS = 4.0
"""Seconds of all samples of one candidate; a slow one gets fewer than requested, at least 3."""


@dataclass(frozen=True)
class Candidate:
    """Something to time."""

    name: str
    prepare: Callable[[], "Prepared"]
    """cheap: traces, allocates; an error it raises is the reason why this candidate is left out"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """further columns of its row"""
    bound: float | None = None
    """least seconds by the device's bandwidth and arithmetic"""
    ours: bool = False
    """whether it must work"""


@dataclass
class Prepared:
    """A call that is ready to be compiled, if it needs to be."""

    call: Callable[[], Any]
    """starts it; does not wait"""
    wait: Callable[[Any], Any] = jax.block_until_ready
    compile: Callable[[], Any] | None = None
    """whether it may run in a thread with others"""
    per_call: int = 1
    """operations per call; the times are per operation"""
    free: Callable[[], None] = lambda: None


def jitted(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    carried: Mapping[int, int] | None = None,
    memory_limit: float = math.inf,
    per_call: int = 1,
) -> Prepared:
    """Prepare a jitted function on arrays; `carried` arguments are donated and replaced by a result.

    Traced here, in the caller's context; compiled later.

    Raises:
        MemoryError: on `compile`, if it would need more than `memory_limit` bytes.
    """
    carried = dict(carried or {})
    lowered = jax.jit(function, donate_argnums=tuple(carried)).lower(*arguments)
    current = [jax.tree.map(jax.numpy.copy, x) if i in carried else x for i, x in enumerate(arguments)]
    compiled: list[Any] = []

    def compile_it() -> None:
        compiled.append(lowered.compile())
        if (memory := compiled[0].memory_analysis()) is not None:
            needed = memory.temp_size_in_bytes + memory.output_size_in_bytes
            if needed > memory_limit:
                raise MemoryError(f"would need {needed / 2**30:.0f} GiB of scratch memory and results")

    def call() -> Any:
        results = compiled[0](*current)
        for argument, result in carried.items():
            current[argument] = results[result]
        return results

    return Prepared(call, compile=compile_it, per_call=per_call, free=current.clear)


def compare(session: Session, step: str, candidates: Sequence[Candidate], **facts: Any) -> dict[str, float]:
    """Time candidates against each other; add a row for each, with the ratio to the first one's time.

    Returns:
        Median seconds of those that ran.
    """
    ready: dict[str, Prepared] = {}
    for candidate in candidates:
        if session.broken(step, candidate.name):
            session.skip(step, candidate.name, BROKE)
            continue
        with session.guarded(step, candidate.name, candidate.ours):
            ready[candidate.name] = candidate.prepare()
    ours = {candidate.name for candidate in candidates if candidate.ours}
    _compile(session, step, ready, ours)
    turns: dict[str, tuple[int, int]] = {}
    for name, prepared in list(ready.items()):
        with session.guarded(step, name, name in ours):
            _timed(prepared, 1)
            turns[name] = _turns(_timed(prepared, 2) * prepared.per_call, session.sizing)
        if name not in turns:
            ready.pop(name).free()
    session.running(step, "all")
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(max((taken for taken, _ in turns.values()), default=0)):
        for name in in_turn(list(ready), turn):
            wanted, calls = turns[name]
            if turn < wanted:
                samples[name].append(_timed(ready[name], calls))
    medians = {name: statistics.median(taken) for name, taken in samples.items() if taken}
    first = medians.get(candidates[0].name)
    for candidate in candidates:
        name = candidate.name
        if name in medians:
            median = medians[name]
            session.add(
                step=step,
                what=name,
                status="measured",
                seconds=median,
                seconds_min=min(samples[name]),
                seconds_max=max(samples[name]),
                samples=len(samples[name]),
                calls_per_sample=turns[name][1],
                ratio_to_first=None if first is None else median / first,
                bound_fraction=None if candidate.bound is None else candidate.bound / median,
                **facts,
                **candidate.facts,
            )
            ready[name].free()
    if medians:
        shown = ", ".join(f"{n} {1e3 * s:.4g}" for n, s in sorted(medians.items(), key=lambda x: x[1]))
        session.say(f"{step}: ms: {shown}")
    return medians


def _compile(session: Session, step: str, ready: dict[str, Prepared], ours: set[str]) -> None:
    """Compile all in threads, or one by one if that ended an earlier process; drop failures from `ready`."""

    def attempt(name: str) -> str | None:
        compile_it = ready[name].compile
        try:
            if compile_it is not None:
                compile_it()
        except Exception as error:  # compilers raise all kinds
            return one_line(error)[:500]
        return None

    together = "compiling together"
    session.running(step, together)
    reasons: dict[str, str | None] = {}
    with ThreadPoolExecutor(8) as pool:
        if session.broken(step, together):
            for name in ready:
                if session.broken(step, f"compiling {name}"):
                    reasons[name] = BROKE
                    continue
                session.running(step, f"compiling {name}")
                session.wait([future := pool.submit(attempt, name)])
                reasons[name] = future.result()
        else:
            futures = {name: pool.submit(attempt, name) for name in ready}
            session.wait(futures.values())
            reasons = {name: future.result() for name, future in futures.items()}
    session.report["running"] = [session.section, step, "all"]
    for name, reason in reasons.items():
        if reason is not None:
            ready.pop(name).free()
            session.add(step=step, what=name, status="failed", reason=reason, ours=name in ours)
            session.say(f"{step}: {name} FAILED, {reason[:160]}")


def _timed(prepared: Prepared, calls: int) -> float:
    """Return the seconds per operation."""
    return seconds_per_call(prepared.call, prepared.wait, calls) / prepared.per_call


def _turns(seconds: float, sizing: Sizing) -> tuple[int, int]:
    """Return samples, and calls per sample, for a call of so many seconds."""
    if sizing.quick:
        return 1, 1
    calls = calls_per_sample(seconds, most=200)
    fitting = int(LONGEST_SECONDS / max(seconds * calls, 1e-9))
    return max(3, min(sizing.samples, fitting)), calls
