"""`mixers`: measure the cost of every sequence mixer on this machine's CPU against length, and its state."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from based_jax import mixers
from benchmarks import tables
from benchmarks.analysis import series, summarize
from benchmarks.flags import comma_list
from benchmarks.ops.mixer_candidates import DECODE, PASSES, measured
from benchmarks.programs import FORWARD, FORWARD_BACKWARD
from benchmarks.report import Report
from benchmarks.study import Flags, ascending
from benchmarks.tables import MISSING, PASS_TITLES, milliseconds, power, significant


@dataclass(frozen=True)
class Mixers(Flags):
    """Time, growth and state of every sequence mixer against length, on CPU in float32, batch 1.

    Forward; forward+backward (gradients of the sum of squares by parameters and input); one decoding step
    (a token after a text of that length). Also the bytes of the state as allocated and its floats by the
    papers' formulas. All mixers take turns in one run. Cases that would not fit in memory or in the time
    budget are skipped, and the table lists them. Ctrl-C keeps the measurements so far.
    """

    lengths: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (512, 1024, 2048, 4096, 8192)
    """Tokens per row."""
    seconds: float = 10.0
    """Time budget per case, in seconds: a case that would exceed it has fewer samples, or is skipped."""
    fit_from: int = 512
    """Shortest length, in tokens, that enters the fitted growth exponents."""
    mixers: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = tuple(mixers.names())
    """Mixers to measure."""
    d_model: int = 512
    """Channels of the inputs and outputs."""
    samples: int = 3
    """Samples per case; the table shows their median."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C. Raises ValueError for a wrong flag."""
        self.check("lengths", "fit_from", "d_model", mixers=mixers.names())
        lengths = ascending(self.lengths)
        self.expect_inputs_fit(lengths[-1], 4 * lengths[-1] * self.d_model)
        found = {name: measured(name, self.d_model, lengths[-1]) for name in self.mixers}
        candidates = [mixer.candidate() for mixer in found.values()]
        described = [{"name": c.name, "label": c.label, "options": found[c.name].options} for c in candidates]
        settings = {"d_model": self.d_model, "batch": 1, "lengths": lengths}
        results = self.new_report("mixers", command, settings, described)
        study = self.study(results, candidates, PASSES)

        def collect() -> Report:
            rows = [
                row
                | {"tokens_per_second": _throughput(row)}
                | found[row["candidate"]].state_size(row["length"])
                for row in study.rows()
            ]
            return {"rows": rows, "summary": summarize(rows, self.fit_from)}

        return self.measure(results, [(study, lengths)], collect, "Sequence mixers on CPU", text)


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
    fitted = {
        (entry["candidate"], entry["pass"]): entry["time_exponent"] for entry in report["summary"]["growth"]
    }
    body = []
    for candidate in report["candidates"]:
        name = candidate["name"]
        times = {direction: series(rows, name, direction) for direction in PASSES}
        forward, both, step = (power(fitted.get((name, direction))) for direction in PASSES)
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
