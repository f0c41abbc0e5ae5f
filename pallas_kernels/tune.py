"""`python -m pallas_kernels.tune --out DIR`: measure the variants of each kernel on this GPU.

Each candidate takes turns with the block sizes in use; candidates whose results differ are rejected.
`python -m pallas_kernels.adopt DIR` adds the fastest ones to the tuning tables.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pallas_kernels import catalog, measuring
from pallas_kernels.case import Case
from pallas_kernels.checks import expect
from pallas_kernels.flags import parse, run
from pallas_kernels.measuring import MeasuringFlags
from pallas_kernels.taylor_attention import cases as attention
from pallas_kernels.trials import Trial

PROGRAM = "python -m pallas_kernels.tune"

HEADLINE = "K16 V64 bfloat16"
"""The most important shape: a head of Based-360M."""

KERNELS = ("outputs", "dq", "dk", "dv", "key_sums", "query_sums")
"""Kernels of attention, the most important first."""


@dataclass(frozen=True, kw_only=True)
class Tune(MeasuringFlags):
    """Measure the variants of the kernels on this GPU and write all measurements to DIR/tune.json.

    There are some 4,700 variants of 146 shapes. The block sizes in use and those that differ from them in one
    field come first (some 980, starting with the headline shape), then the most promising others. At an
    estimated 0.7 s per variant, nine minutes cover the first group, and four runs with --resume all of them.
    """

    op: str | None = None
    """Only this folder of kernels, as "taylor_step"."""
    match: str = ""
    """Only cases whose name contains this."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `measuring.run` for the exit status and errors."""
    flags = parse(Tune, argv, PROGRAM)
    flags.check()
    expect(flags.op in (None, *catalog.OPS), "--op", flags.op, f"one of {', '.join(catalog.OPS)}")
    return measuring.run("tune", flags, argv, lambda: trials(flags), measuring.no_gpu)


def trials(flags: Tune) -> list[list[Trial]]:
    """Return the candidates of each case, the current choice first; the most important cases first."""
    cases = catalog.cases(flags.match) if not flags.quick else quick(flags.match)
    wanted = [case for case in cases if case.default and flags.op in (None, case.op)]
    listed = [candidates(case, flags.quick) for case in sorted(wanted, key=rank)]
    found = [[trial(case) for case in cases] for cases in listed if len(cases) > 1]
    expect(len(found) > 0, "--match", flags.match, f"part of the name of a case of {flags.op or 'any op'}")
    return found


QUICK = attention.Sizes(batch=1, length=130, heads=1, block=64)


def quick(match: str) -> list[Case]:
    """Return two kernels on a tiny size."""
    cases = attention.cases([(16, 64, "bfloat16")], QUICK)
    return [case for case in cases if case.kernel in ("outputs", "dv") and match in case.name][:2]


def candidates(case: Case, quick: bool) -> list[Case]:
    """Return the case itself, then the other variants on its shape: two of them if `quick`."""
    if not quick:
        return catalog.candidates(case)
    return [case, *(x for x in attention.candidates(case, QUICK) if x.variant != case.variant)][:3]


def rank(case: Case) -> tuple[int, int]:
    """Return a sort key: lower is measured earlier."""
    if case.op == "taylor_attention" and case.shape.startswith(HEADLINE):
        return ("packed" in case.shape, KERNELS.index(case.kernel))
    if case.op != "taylor_attention":
        return (2, 0)
    return (4 if case.on_request else 3, 0)


def trial(case: Case) -> Trial:
    """Return a case as a trial to measure."""
    name, columns = f"{case.op}/{case.kernel} {case.shape}", {"op": case.op, "when": catalog.facts(case)}
    given = asdict(case.variant), columns, catalog.carried(case), case.fill
    return Trial(name, str(case.variant), case.function, case.arguments, *given)


if __name__ == "__main__":
    run(PROGRAM, main)
