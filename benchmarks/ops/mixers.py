"""`mixers`: measure the cost of every sequence mixer on this machine's CPU against length, and its state."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax.core import meta

from based_jax import mixers
from based_jax.generate.states import state_bytes
from based_jax.mixers.contract import Mixer
from based_jax.ops.core.stream import Stream
from based_jax.typing import Array, Int, Params, State
from benchmarks import tables
from benchmarks.analysis import growth_exponent, series
from benchmarks.flags import Counts, Names
from benchmarks.report import Report
from benchmarks.study import FORWARD, FORWARD_BACKWARD, Candidate, Flags, Program, compile_jitted
from benchmarks.tables import MISSING, PASS_TITLES, milliseconds, power, significant

DECODE = "decode"
PASSES = (FORWARD, FORWARD_BACKWARD, DECODE)
"""Passes: outputs; gradients of the sum of squares by parameters and input; the next token after a text."""

OPTIONS: dict[str, dict[str, Any]] = {"base_conv": {"kernel_size": -1}}
"""Options that differ from the defaults: base_conv is measured with the long one of its two convolutions."""

LIMIT = "l_max"
"""Option that bounds the length; mixers that have it get the longest measured length."""


@dataclass(frozen=True)
class Measured:
    """A mixer of the report."""

    name: str
    options: dict[str, Any]
    mixer: Mixer

    @functools.cached_property
    def info(self) -> mixers.MixerInfo:
        """Return what the registry has about it."""
        return mixers.info(self.name)

    def candidate(self) -> Candidate:
        """Return the candidate of the study, batch 1."""
        lacks = {} if self.info.stateful else {DECODE: "keeps no state"}
        return Candidate(self.name, self.info.summary, "jax", self.prepare, lacks=lacks)

    def state_size(self, length: int) -> dict[str, int | None]:
        """Return columns of a row: bytes of the state for `length` tokens and the papers' floats, or None."""
        if not self.info.stateful:
            return {"state_bytes": None, "state_floats": None}
        allocated = state_bytes(self.mixer, length)
        return {"state_bytes": allocated, "state_floats": self.mixer.state_size(length)}

    @functools.cached_property
    def params(self) -> Params:
        """Return its parameters, the same at every length."""
        x = jnp.zeros((1, 1, self.mixer.d_model))
        return meta.unbox(jax.jit(self.mixer.init)(jax.random.key(0), x))

    @functools.cached_property
    def step(self) -> Any:
        """Return one decoding step, jitted once: a state that does not grow is compiled for one length."""

        def step(params: Params, x: Array, state: State) -> tuple[Array, State]:
            y, after = self.mixer.apply(params, x, state, **self.ids(x))
            # With the streams before the step, so that each call decodes the same position.
            return y, jax.tree.map(lambda a, b: b if _is_stream(b) else a, after, state, is_leaf=_is_stream)

        return jax.jit(step, donate_argnums=2)

    def prepare(self, length: int, direction: str) -> Program:
        """Compile a pass for inputs (1, N, D); decoding is of token N after N - 1 others."""

        def forward(params: Params, x: Array) -> Array:
            return self.mixer.apply(params, x, **self.ids(x))[0]

        def loss(params: Params, x: Array) -> Array:
            return jnp.sum(forward(params, x) ** 2)

        x = jax.random.normal(jax.random.key(1), (1, length, self.mixer.d_model))
        if direction == DECODE:
            # An empty state: the time of a step does not depend on its contents.
            state = placed(jax.tree.map(jnp.copy, self.mixer.init_state(1, length)), length - 1)
            return compile_jitted(self.step, [self.params, x[:, -1:], state], carried=2)
        function = forward if direction == FORWARD else jax.grad(loss, argnums=(0, 1))
        return compile_jitted(jax.jit(function), [self.params, x])

    def ids(self, x: Array) -> dict[str, Array]:
        """Return token ids as the argument of a mixer that reads them: each of 64 in turn."""
        ids = jnp.broadcast_to(jnp.arange(x.shape[1]) % 64, x.shape[:2])
        return {"tokens": ids} if self.mixer.wants_tokens else {}


def measured(name: str, d_model: int, longest: int) -> Measured:
    """Return the mixer as measured, for texts of up to `longest` tokens."""
    limit = {LIMIT: longest} if LIMIT in mixers.info(name).options else {}
    options = OPTIONS.get(name, {}) | limit
    return Measured(name, options, mixers.make(name, d_model=d_model, **options))


def _is_stream(node: Any) -> bool:
    return isinstance(node, Stream)


def placed(state: State, length: Int[Array, ""] | int) -> State:
    """Set the position of every row in a state to `length` tokens."""

    def moved(node: Any) -> Any:
        return replace(node, length=jnp.full_like(node.length, length)) if _is_stream(node) else node

    return jax.tree.map(moved, state, is_leaf=_is_stream)


@dataclass(frozen=True)
class Mixers(Flags):
    """Time, growth and state of every sequence mixer against length, on CPU in float32, batch 1.

    Forward; forward+backward (gradients of the sum of squares by parameters and input); one decoding step
    (a token after a text of that length). Also the bytes of the state as allocated and its floats by the
    papers' formulas. All mixers take turns in one run. Cases that would not fit in memory or in the time
    budget are skipped, and the table lists them. Ctrl-C keeps the measurements so far.
    """

    lengths: Counts = (512, 1024, 2048, 4096, 8192)
    """Tokens per row."""
    seconds: float = 10.0
    """Time budget per case, in seconds: a case that would exceed it has fewer samples, or is skipped."""
    fit_from: int = 512
    """Shortest length, in tokens, that enters the fitted growth exponents."""
    mixers: Names = tuple(mixers.names())
    """Mixers to measure."""
    d_model: int = 512
    """Channels of the inputs and outputs."""
    samples: int = 3
    """Samples per case; the table shows their median."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C. Raises ValueError for a wrong flag."""
        self.check("lengths", "fit_from", "d_model", mixers=mixers.names())
        lengths = sorted(set(self.lengths))
        self.expect_inputs_fit(lengths[-1], 4 * lengths[-1] * self.d_model)
        found = {name: measured(name, self.d_model, lengths[-1]) for name in self.mixers}
        candidates = [mixer.candidate() for mixer in found.values()]
        described = [{"name": c.name, "label": c.label, "options": found[c.name].options} for c in candidates]
        settings = {"d_model": self.d_model, "batch": 1, "lengths": lengths}
        results = self.new_report("mixers", command, settings, described)
        results["summary"] = {"growth_from_length": self.fit_from}
        study = self.study(results, candidates, PASSES)

        def rows() -> list[dict[str, Any]]:
            return [
                row
                | {"tokens_per_second": _throughput(row)}
                | found[row["candidate"]].state_size(row["length"])
                for row in study.rows()
            ]

        return self.measure(results, [(study, lengths)], rows, "Sequence mixers on CPU", text)


def _throughput(row: dict[str, Any]) -> float | None:
    tokens = 1 if row["pass"] == DECODE else row["length"]
    return tokens / row["seconds"] if row["seconds"] else None


TITLES = PASS_TITLES | {DECODE: "step"}


def text(report: Report) -> str:
    """Return milliseconds of forward and backward at every length; the rest at the longest one."""
    settings, rows = report["settings"], report["rows"]
    lengths = settings["lengths"]
    longest = lengths[-1]
    powers_and_steps = "fwd+bwd ~", "forward ~", "forward, tokens/s", "step, ms", "step ~"
    columns = ["mixer", *(f"{n:,}" for n in lengths), *powers_and_steps, "state, KiB", "floats"]
    start = report["summary"]["growth_from_length"]
    body = []
    for candidate in report["candidates"]:
        name = candidate["name"]
        times = {direction: series(rows, name, direction) for direction in PASSES}
        forward, both, step = (power(growth_exponent(times[direction], start)) for direction in PASSES)
        speed = series(rows, name, FORWARD, "tokens_per_second").get(longest)
        last = next((r for r in rows if (r["candidate"], r["length"]) == (name, longest)), None)
        both_by_length = (milliseconds(times[FORWARD_BACKWARD].get(n)) for n in lengths)
        of_forward = both, forward, f"{float(f'{speed:.3g}'):,.0f}" if speed else MISSING
        of_step = milliseconds(times[DECODE].get(longest)), step
        body.append([name, *both_by_length, *of_forward, *of_step, *_state(last)])
    return tables.blocks(
        f"{settings['dtype']}: d_model {settings['d_model']}, batch {settings['batch']}; "
        f"{tables.ran_on(report, 'jax')}.",
        f"Forward and backward in milliseconds by tokens; the rest at {longest:,} tokens.",
        tables.table(columns, body),
        tables.not_measured(
            rows, lambda row: f"{row['candidate']} {TITLES[row['pass']]} at {row['length']:,} tokens"
        ),
    )


def _state(row: dict[str, Any] | None) -> Iterable[str]:
    if row is None or row["state_bytes"] is None:
        return "", ""
    return significant(row["state_bytes"] / 1024), f"{row['state_floats']:,}"
