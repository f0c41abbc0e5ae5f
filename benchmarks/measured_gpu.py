"""Tables of what GPUs were measured to do, from the kept reports: the blocks of the documentation's pages."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import decode_tables, pages
from benchmarks.pages import MISSING
from benchmarks.rounding import significant
from pallas_kernels.adopt import Report
from pallas_kernels.choices import AXES, LAST, PAIRS

Row = Mapping[str, Any]

CANDIDATES = {
    "mosaic": "ours, Mosaic",
    "pallas": "ours, Pallas",
    "triton": "ours, jax-triton",
    "xla": "ours, XLA",
    "cumulative_sum": "cumulative sum",
    "fla_parallel_based": "fla, parallel",
    "fla_fused_chunk_based": "fla, fused chunk",
    "softmax_cudnn": "softmax, cuDNN",
}
"""Candidates of `benchmarks gpu` -> headings."""

PANEL_BATCH = 4
"""Rows of the figure: Based, Figure 5, has its lengths at this batch."""

LARGE = "B16 N32768"
"""The size of the estimates and of the lower bounds that the lists name."""


class Device(NamedTuple):
    """What was measured on one kind of GPU."""

    device: str
    reports: tuple[Report, ...]
    """the oldest first"""

    def rows(self, section: str, kind: str = "gpu") -> dict[tuple[str, str], Row]:
        """Return (step, candidate) -> the newest row of a section that has a time or a verdict."""
        found: dict[tuple[str, str], Row] = {}
        for report in self.of(kind):
            for row in report.content["rows"]:
                if row["section"] == section and row["status"] in ("measured", "passed", "wrong"):
                    found[row["step"], row["what"]] = row
        return found

    def checks(self) -> int:
        """Return the number of comparisons with float64 that the reports list, made or not."""
        rows = [row for report in self.of("gpu") for row in report.content["rows"]]
        return len({row["step"] for row in rows if row["section"] in ("correctness", "mosaic")})

    def of(self, kind: str) -> list[Report]:
        """Return the reports of one command."""
        return [report for report in self.reports if report.kind == kind]

    def source(self, *kinds: str) -> str:
        """Return the card, and the releases of jax and the dates of its reports of these commands."""
        machines = [report.content["machine"] for kind in kinds for report in self.of(kind)]
        releases = ", ".join(sorted({str(machine["jax"]) for machine in machines}))
        dates = ", ".join(sorted({str(machine["date"])[:10] for machine in machines}))
        return f"{self.device}, jax {releases}, {dates}"

    def estimate(self, what: str) -> tuple[str, str] | None:
        """Return an estimate of benchmarks/gpu.md and its newest measurement."""
        found = None
        for report in self.of("gpu"):
            for name, expected, measured in report.content["summary"]["tables"]["expected"]:
                if name == what and measured is not None:
                    found = expected, measured
        return found


def cards(reports: Sequence[Report]) -> list[Device]:
    """Return the cards in order of their names; `reports` are sorted by date."""
    names = sorted({report.device for report in reports})
    return [Device(name, tuple(x for x in reports if x.device == name)) for name in names]


def _size(step: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", step))


def _steps(rows: Iterable[tuple[str, str]]) -> list[str]:
    return sorted({step for step, _ in rows}, key=_size)


def _ms(row: Row | None, scale: float = 1e3) -> str:
    if row is None:
        return MISSING
    value = scale * row["seconds"]
    return f"{value:.3f}" if value < 1 else significant(value)


def attention(card: Device) -> Iterator[str]:
    """Time of causal attention by size."""
    yield (
        f"{card.source('gpu')}, bfloat16, 16 heads, Taylor attention with K = 16 and V = 64, softmax "
        "attention with 64 channels; B rows of N tokens; milliseconds, medians, in turns."
    )
    yield from _titled("Forward:", card.rows("forward"))
    yield from _titled("Forward and backward, by one backend each:", card.rows("backward"))
    yield from _titled("Forward, for Hopper and portable in turns:", card.rows("mosaic_forward"))
    if card.of("peers"):
        versions = card.of("peers")[-1].content["machine"]
        yield (
            f"Beside flash-linear-attention {versions['fla_core']} (fla; torch {versions['torch']}), each "
            "called from Python, launches included."
        )
        yield from _titled("Forward:", card.rows("forward", "peers"))
        yield from _titled("Forward and backward:", card.rows("backward", "peers"))


def _titled(title: str, rows: Mapping[tuple[str, str], Row]) -> Iterator[str]:
    """Yield a table of milliseconds by size and candidate, unless there is no row."""
    names = [name for name in CANDIDATES if any(name == what for _, what in rows)]
    body = [[step, *(_ms(rows.get((step, name))) for name in names)] for step in _steps(rows)]
    if body:
        yield title
        yield pages.table(["", *(CANDIDATES[name] for name in names)], body)


def attention_losses(card: Device) -> Iterator[str]:
    """Where the kernels of attention miss what was wanted or expected."""
    forward, backward = card.rows("forward"), card.rows("backward")
    hopper = card.rows("mosaic_forward")
    lines = []
    for what in ("forward, B 16, H 16, N 32768", "backward alone, L = N"):
        if (found := card.estimate(what)) is not None:
            lines.append(
                f"The portable kernels miss their estimate: {what}: {found[1]}, expected {found[0]}."
            )
    shares = [
        f"{words} {row['bound_fraction']:.0%}"
        for words, row in (
            ("Pallas forward", forward.get((LARGE, "pallas"))),
            ("Mosaic forward", hopper.get((LARGE, "mosaic"))),
            ("forward and backward", backward.get((LARGE, "pallas"))),
        )
        if row is not None
    ]
    if shares:
        lines.append(
            f"At {LARGE} the least time that the card's measured copy and matmul rates allow, as a share of "
            f"the time: {', '.join(shares)}."
        )
    if ratios := _ratios(forward, "triton", "pallas"):
        lines.append(
            f"jax-triton takes {min(ratios):.2f} to {max(ratios):.2f} times as long as Pallas, forward, at "
            f"the {len(ratios)} sizes measured."
        )
    lines += _missed(card, ("forward", "backward"))
    yield "\n".join(f"- {line}" for line in lines)


def _ratios(rows: Mapping[tuple[str, str], Row], one: str, other: str) -> list[float]:
    """Return the time of one candidate over that of the other, by size."""
    both = [step for step in _steps(rows) if (step, one) in rows and (step, other) in rows]
    return [rows[step, one]["seconds"] / rows[step, other]["seconds"] for step in both]


def _missed(card: Device, beginnings: tuple[str, ...]) -> list[str]:
    """Return the targets that the newest measurement misses."""
    found: dict[str, tuple[str, str]] = {}
    for report in card.of("gpu"):
        for name, wanted, measured in report.content["summary"]["tables"]["targets"]:
            if measured is not None and name.startswith(beginnings):
                found[name] = wanted, measured
    return [
        f"Target missed: {name}: wanted {wanted}, measured {measured.removesuffix(', missed')}."
        for name, (wanted, measured) in found.items()
        if measured.endswith(", missed")
    ]


def training(card: Device) -> Iterator[str]:
    """Whole training steps."""
    for report in card.of("train"):
        labels = {"jax": "ours", "jax_cudnn": "ours, attention by cuDNN", "torch": "torch, eager, SDPA"}
        rows = report.content["rows"]
        dtype, tokens = report.content["settings"]["dtype"], f"{rows[0]['batch']} x {rows[0]['length']:,}"
        yield f"{card.source('train')}, {dtype}, {tokens} tokens a step:"
        yield pages.table(
            ["model", "tokens/s", "ms a step", "peak, GB"],
            (
                [
                    f"{row['model']}, {labels[row['candidate']]}",
                    f"{row['tokens_per_second']:,.0f}",
                    _ms(row),
                    significant(row["peak_bytes"] / 1e9),
                ]
                for row in rows
            ),
        )
        for row in rows:
            if "kernels_ms" in row:
                yield _kernels(row)


KINDS = {
    r"nvjet|gemm|cublas|cutlass": "products",
    r"cudnn": "cuDNN's attention",
    r"taylor_": "Taylor attention",
    r"^window_": "windows",
    r"input_": "reductions with elementwise work",
    r"loop_|wrapped_|fusion": "elementwise work",
}
"""Pattern of a kernel's name -> what it computes."""


def _kernels(row: Row) -> str:
    """Return how the time of a step divides among kinds of kernels."""
    times: dict[str, float] = {}
    launches = 0
    for name, count, milliseconds in row["kernels_ms"]:
        kind = next((kind for pattern, kind in KINDS.items() if re.search(pattern, name)), "other")
        times[kind] = times.get(kind, 0) + milliseconds
        launches += count
    parts = ", ".join(
        f"{kind} {significant(time)}" for kind, time in sorted(times.items(), key=lambda x: -x[1])
    )
    total = significant(sum(times.values()))
    return f"Kernels of a step of {row['model']}: {launches:,} launches of {total} ms in all: {parts}."


def steps(card: Device) -> Iterator[str]:
    """Time of the decoding steps by batch."""
    yield (
        f"{card.source('gpu')}, bfloat16, 16 heads of 64 channels (Taylor features of 16), a full window of "
        "64 keys without rotary positions; microseconds of a step in a loop inside one program, by batch:"
    )
    for title, section in (("`taylor_step`", "decode"), ("`window_step`", "window")):
        rows = {key: row for key, row in card.rows(section).items() if key[1].endswith(" loop")}
        batches = sorted({row["batch"] for row in rows.values()})
        kinds = list(dict.fromkeys((row["what"], row.get("state", "")) for row in rows.values()))
        found = {(row["what"], row.get("state", ""), row["batch"]): row for row in rows.values()}
        body = [
            [
                CANDIDATES[what.removesuffix(" loop")] + (f", {state} state" if state else ""),
                *(_ms(found.get((what, state, batch)), 1e6) for batch in batches),
            ]
            for what, state in kinds
        ]
        if body:
            yield pages.table([title, *(f"{batch:,}" for batch in batches)], body)


def step_losses(card: Device) -> Iterator[str]:
    """Where the kernels of decoding lose."""
    lines = []
    for title, section in (("taylor_step", "decode"), ("window_step", "window")):
        rows = {key: row for key, row in card.rows(section).items() if row.get("state") != "bfloat16"}
        ours = {row["batch"]: row for (_, what), row in rows.items() if what == "pallas loop"}
        for other in ("xla", "softmax_cudnn"):
            theirs = {row["batch"]: row for (_, what), row in rows.items() if what == f"{other} loop"}
            pairs = [
                (batch, theirs[batch]["seconds"] / ours[batch]["seconds"])
                for batch in sorted(ours)
                if batch in theirs
            ]
            slower = [f"{batch:,} ({1 - ratio:.1%})" for batch, ratio in pairs if ratio < 0.995]
            if slower:
                name = CANDIDATES[other].removeprefix("ours, ")
                lines.append(
                    f"`{title}`, {name} takes less time than the kernel at batch {', '.join(slower)} of "
                    f"{len(pairs)} batches measured."
                )
        if not ours:
            continue
        small, large = ours[min(ours)], ours[max(ours)]
        lines.append(
            f"`{title}` at batch {small['batch']}: a step takes {_ms(small, 1e6)} us, of which the card's "
            f"copy rate explains {small['bound_fraction']:.1%}; at batch {large['batch']} "
            f"{large['bound_fraction']:.0%}."
        )
    lines += _missed(card, ("decode", "window"))
    yield "\n".join(f"- {line}" for line in lines)


def generation(card: Device) -> Iterator[str]:
    """The newest report of `benchmarks decode` for each size."""
    newest = {report.content["settings"]["size"]: report.content for report in card.of("decode")}
    for content in newest.values():
        yield decode_tables.markdown(content).removesuffix("\n")


PRESETS = {"based": "based", "attention": "attn", "attention_cudnn": "attn", "mamba": "mamba"}
"""Candidates of `benchmarks decode` -> models of `benchmarks static`."""


def programs(card: Device, floors: Mapping[str, Any]) -> Iterator[str]:
    """Measured times of the programs that `benchmarks static` counted."""
    found: dict[str, tuple[float, float]] = {}
    for report in card.of("train"):
        for row in report.content["rows"]:
            name = f"{row['model']}, train {row['batch']} x {row['length']}"
            if row["candidate"] in ("jax", "jax_cudnn") and name in floors["summary"]:
                found[name] = floors["summary"][name]["floor_seconds_with_cudnn"], row["seconds"]
    for report in card.of("decode"):
        for row in report.content["rows"]:
            model = f"{PRESETS[row['candidate']]}-{report.content['settings']['size']}"
            name = f"{model}, decode {row['batch']} after {row['length']}"
            if row["part"] == "contexts" and row["seconds"] and name in floors["summary"]:
                floor = floors["summary"][name]
                found[name] = (
                    floor["floor_seconds_with_cudnn"] or floor["floor_seconds"],
                    row["seconds_per_token"],
                )
    if not found:
        return
    gpu = floors["settings"]["gpu"]
    other = "" if gpu in card.device else ", another card with other floors of its own"
    yield (
        f"Floors of an {gpu} (attn-360m: with cuDNN's attention), times of {card.source('train', 'decode')}"
        f"{other}."
    )
    yield pages.table(
        ["program", f"floor, {gpu}, ms", f"measured, {card.device}, ms", "measured over floor"],
        (
            [name, significant(1e3 * floor), significant(1e3 * time), f"{time / floor:.2f}"]
            for name, (floor, time) in found.items()
        ),
    )


def checks(card: Device) -> Iterator[str]:
    """How many comparisons of the kernels with float64 passed."""
    found = [*card.rows("correctness").values(), *card.rows("mosaic").values()]
    passed = sum(row["status"] == "passed" for row in found)
    failed = len(found) - passed
    text = f"{passed} of {card.checks()} comparisons of kernels with float64 passed, {failed} failed"
    links = "[times](docs/benchmarks.md#on-a-gpu), [decoding](docs/decoding.md#on-a-gpu)"
    yield f"- **{card.source('gpu')}**: {text}, the others were not made ({links})."


def figure_facts(card: Device) -> str:
    """Return what the figure's panel of this card shows."""
    return f"one op on {card.source('gpu')}, bfloat16, {PANEL_BATCH} rows of 16 heads"


def panel_times(card: Device) -> dict[str, dict[int, float]]:
    """Return candidate -> length -> seconds of a forward and backward pass, for the figure."""
    found: dict[str, dict[int, float]] = {}
    for (_, what), row in sorted(card.rows("backward").items(), key=lambda item: item[1]["length"]):
        if row["batch"] == PANEL_BATCH:
            found.setdefault(what, {})[row["length"]] = row["seconds"]
    return found


def defaults(tree: Path) -> str:
    """Return what None picks where a measurement decides, from the tables of backends."""
    rows = []
    for op in AXES:
        pair = next(pair for pair in PAIRS.values() if pair.op == op)
        for row in json.loads((tree / "pallas_kernels" / op / "backends.json").read_text()):
            when = ", ".join(f"{name} {_range(value)}" for name, value in row["when"].items())
            other = pair.kernel if row["backend"] == pair.plain else pair.plain
            cells = [
                f"`{op}`",
                row["device"],
                when.replace("_", " "),
                f'`"{row["backend"]}"`',
                f'`"{other}"`',
            ]
            rows.append(cells)
    return pages.table(["op", "compute capability", "where", "`None` picks", "instead of"], rows, left=5)


def _range(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    low, high = value
    return f"from {low:,}" if high == LAST else f"{low:,} to {high:,}"
