"""Sections `correctness` and `mosaic`: checks that would reveal a wrong index or a race.

A failure does not stop the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels
from benchmarks.gpu.cases.taylor_attention import SHAPES
from benchmarks.gpu.sections import checks
from benchmarks.gpu.sections.checks import Attention, Check, Outcome, Window, WindowAttention
from benchmarks.gpu.sections.recurrences import LinearAttention, LinearRecurrence, Scan
from benchmarks.gpu.sections.session import Session, Step, UnavailableError, require
from benchmarks.gpu.sections.stopwatch import COMPILERS, Candidate, Prepared
from pallas_kernels import Rotary

QUICK = (2, 3, 4)
"""The checks that the interpreter compiles in seconds: each op once."""


@dataclass(frozen=True)
class Addresses(Check):
    """The last row of arrays of more than 2^31 elements must equal the row computed alone."""

    rows: int = 33
    length: int = 65536
    heads: int = 16

    @property
    def name(self) -> str:
        return f"addresses R{self.rows} N{self.length}"

    def tiny(self) -> "Addresses":
        return replace(self, rows=2, length=130, heads=1)

    def program(self) -> checks.Program:
        def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            shape = (self.rows, self.length, self.heads)
            q = jax.random.normal(key, (*shape, 16), jnp.bfloat16)
            v = jax.random.normal(key, (*shape, 64), jnp.bfloat16)
            alone = pallas_kernels.taylor_attention(q[-1:], q[-1:], v[-1:], block=self.length)
            return pallas_kernels.taylor_attention(q, q, v)[-1:], alone

        def judge(compiled: jax.stages.Compiled) -> Outcome:
            y, alone = jax.block_until_ready(compiled(jax.random.key(0)))
            expected = np.asarray(alone.astype(jnp.float32), np.float64)
            return Outcome({"y": checks.error(expected, y)}, checks.TOLERANCES["bfloat16", None], True)

        return checks.Program(jax.jit(run).lower(jax.random.key(0)), judge)


def every_check() -> list[Check]:
    """List checks that would reveal a wrong index or a race, the most used first."""
    attention: list[Check] = [
        Attention(),
        Attention(packed=True),
        Attention(dtype="float32", precision="highest", packed=True),
        Attention(length=2048, batch=1, heads=1, block=2048),
        Attention(block=1000, packed=True),
    ]
    attention += [Attention(*shape) for shape in SHAPES[1:]]
    attention += [Attention(key_size=k, value_size=v, packed=True) for k, v in ((16, 112), (8, 64), (32, 64))]
    attention += [Attention(dtype=dtype, packed=True) for dtype in ("float32", "float16")]
    attention.append(Attention(key_size=24, dtype="float32", precision="highest"))
    steps: list[Check] = [
        checks.Step(),
        checks.Step(state="bfloat16"),
        checks.Step(dtype="float32"),
        checks.Step(value_size=112),
        checks.Step(value_size=256),
        checks.Step(key_size=8),
        checks.Step(key_size=24),
        checks.Step(key_size=32, dtype="float16"),
    ]
    windows: list[Check] = [
        Window(),
        Window(rotary=Rotary(64)),
        Window(dtype="float32", rotary=Rotary(32)),
        Window(slots=65),
        Window(slots=128, kv_heads=1, rotary=Rotary(64, interleaved=True)),
        Window(size=112, rotary=Rotary(56)),
        Window(size=70, slots=16),
    ]
    short: list[Check] = [
        WindowAttention(),
        WindowAttention(packed=True),
        WindowAttention(dtype="float32", packed=True),
        WindowAttention(left=127, heads=4, kv_heads=1, size=128, packed=True),
        WindowAttention(left=15, size=112),
        WindowAttention(left=127, size=128, dtype="float32"),
        WindowAttention(left=0, size=20, dtype="float16"),
    ]
    scans: list[Check] = [Scan(packed=True), Scan(dtype="float32"), Scan(states=8, length=64)]
    scans += [LinearRecurrence(packed=True), LinearRecurrence(dtype="float32"), LinearRecurrence(key_size=40)]
    scans.append(LinearRecurrence(key_size=256, value_size=72, length=64))
    scans += [LinearRecurrence(packed=yes, erases=False, value_size=64) for yes in (True, False)]
    for erases, size in ((True, 64), (False, 128)):
        channels = LinearRecurrence(per_channel=True, erases=erases, key_size=size, value_size=size)
        scans += [replace(channels, packed=True), replace(channels, dtype="float32", key_size=40)]
    scans += [LinearAttention(packed=True), LinearAttention(dtype="float32", features=40)]
    first = [*attention[:3], steps[0], windows[0], *short[:2], *scans]
    return [*first, *attention[3:], *steps[1:], *windows[1:], *short[2:]]


def triton_twins() -> list[Check]:
    """Check the jax-triton twins of the decoding steps."""
    return [checks.Step(implementation="triton"), Window(rotary=Rotary(32), implementation="triton")]


def mosaic_twins() -> list[Check]:
    """Check the Hopper twin: one block and several, two value parts, states, padding."""
    shapes: list[dict[str, Any]] = [
        {},
        {"packed": True},
        {"length": 4096, "batch": 1, "heads": 1},
        {"block": 256, "packed": True},
        {"value_size": 112, "packed": True},
        {"value_size": 128},
    ]
    return [Attention(implementation="mosaic", **shape) for shape in shapes]


def steps(session: Session) -> list[Step]:
    """List a step per check, the most used first."""
    every, large = every_check(), Addresses()
    if session.quick:
        every, large = [every[i].tiny() for i in QUICK], large.tiny()
    return _steps([*every, *triton_twins(), large])


def mosaic_steps(session: Session) -> list[Step]:
    """List a step per check of the Mosaic kernels, on a GPU: their interpreter takes minutes."""
    if pallas_kernels.is_interpreted():
        raise UnavailableError("the interpreter takes minutes; tests/kernels/test_mosaic_taylor.py runs it")
    return _steps(mosaic_twins())


def _steps(every: Sequence[Check]) -> list[Step]:
    return [Step(check.name, candidates=partial(_rows, check), together=COMPILERS) for check in every]


def _rows(check: Check, session: Session) -> list[Candidate]:
    compiled: list[jax.stages.Compiled] = []

    def prepare() -> Prepared:
        words = check.name.split()
        if "mosaic" in words:
            require("taylor_attention", "mosaic")
        if "triton" in words:
            require("window_step" if words[0] == "window" else "taylor_step", "triton")
        program = check.program()
        judges.append(program.judge)
        return Prepared(list, lambda: compiled.append(program.lowered.compile()))

    def judge() -> Mapping[str, Any]:
        outcome = judges[0](compiled[0])
        worst = max(outcome.errors.values())
        session.say(f"{check.name}: largest error {worst:.1e}, {outcome.problem or 'passed'}")
        return {
            "status": "wrong" if outcome.problem else "passed",
            "reason": outcome.problem or None,
            "errors": {name: float(e) for name, e in outcome.errors.items()},
            "tolerance": outcome.tolerance,
            "deterministic": outcome.deterministic,
        }

    judges: list[Any] = []
    return [Candidate("check", prepare, judge=judge, ours=True)]
