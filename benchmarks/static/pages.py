"""Format reports of `inspect`, one per version of jax, side by side as pages and tables.

A report is ``{"toolchain": {name: version}, "cases": [...]}``, as `inspect --json` writes it; its cases are
those of `inspect.as_dict`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pallas_kernels import markdown

Report = dict[str, Any]

COLUMNS = (
    ("registers", "per thread, at most 255", "{registers}"),
    ("stack B", "bytes of local memory per thread, for values that did not fit into registers", "{stack}"),
    ("spill B", "bytes stored / loaded there, each instruction counted once", "{spill_stores}/{spill_loads}"),
    ("shared kB", "shared memory per program, of 227", "{shared_kb:.1f}"),
    ("per SM", "programs that fit on a multiprocessor at a time", "{blocks_per_sm}"),
    ("wgmma", "tensor-core instructions of warp groups", "{wgmma}"),
    ("mma", "slower tensor-core instructions of single warps", "{mma}"),
    ("issue", "cycles to issue a round of the main loop, all branches, for a program", "{loop[issue_slots]}"),
    ("tensor", "cycles of the tensor cores in that round", "{loop[tensor_cycles]}"),
    ("local", "loads and stores of spilled registers in that loop", "{loop[local]}"),
    ("barriers", "waits for all warps in that loop", "{loop[barriers]}"),
)
"""Heading, meaning, format of one kernel."""

COMPARED = ("registers", "stack B", "spill B", "shared kB", "per SM", "issue", "tensor")
"""Columns for each version in a page of several."""

SHARED_LIMIT = 232448
"""Bytes of shared memory that one program may have on an H200."""

PEAK_SHARE = 0.55
"""Share of the bound that kernels of this kind reach."""


def _cell(text: str, kernel: dict[str, Any]) -> str:
    loop = kernel["loop"] or defaultdict(lambda: "-")
    return text.format_map(kernel | {"shared_kb": kernel["shared"] / 1024, "loop": loop})


def version(report: Report) -> str:
    """Return the release of jax of a report."""
    return report["toolchain"]["jax"]


def title(case: dict[str, Any]) -> str:
    """Return the case without its variant."""
    return f"{case['op']}/{case['kernel']} {case['shape']}"


def variant_text(variant: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in variant.items())


def is_picked(case: dict[str, Any]) -> bool:
    """Return whether calls that name no implementation run this variant."""
    return case["default"] and not case["on_request"]


def rows_of(case: dict[str, Any], columns: Sequence[str]) -> list[list[str]]:
    """Return name and cells of each kernel; the kernel's own name if a case runs several."""
    texts = [text for heading, _, text in COLUMNS if heading in columns]
    if case["error"]:
        return [[title(case), "fails", *[""] * (len(texts) - 1)]]
    name = "{}: {}" if len(case["kernels"]) > 1 else "{}"
    return [
        [name.format(title(case), kernel["kernel"]), *(_cell(text, kernel) for text in texts)]
        for kernel in case["kernels"]
    ]


def slots(case: dict[str, Any]) -> float | None:
    """Return the issue slots of the main loops for 64 tokens and all their values; None without loops."""
    loops = [kernel["loop"] for kernel in case["kernels"] if kernel["loop"]]
    return sum(loop["issue_slots"] for loop in loops) * case["rounds"] if loops else None


def stack(case: dict[str, Any]) -> int:
    """Return bytes of stack per thread of the worst kernel, used for lack of registers."""
    return max((kernel["stack"] for kernel in case["kernels"]), default=0)


def problem(case: dict[str, Any], spill: int = 0) -> str:
    """Describe why this must not be a default, or return ""; `spill` bytes of stack are allowed."""
    if case["error"]:
        return case["error"]
    if stack(case) > spill:
        return f"spills {stack(case)} bytes per thread"
    if any(kernel["shared"] > SHARED_LIMIT for kernel in case["kernels"]):
        return f"needs more than {SHARED_LIMIT} bytes of shared memory"
    return ""


def reason(case: dict[str, Any], report: Report) -> str:
    """Explain why a variant that spills is the default nevertheless; empty if there is no reason.

    Needs other variants in the report (`inspect --explain`). Loads and stores of spilled registers are among
    the issue slots that are compared.
    """
    if not stack(case):
        return ""
    loops = [kernel["loop"] for kernel in case["kernels"] if kernel["loop"]]
    if not any(loop["local"] for loop in loops):
        return "once per program, outside of the main loop"
    mine = slots(case) or 0.0
    others = [x for x in report["cases"] if title(x) == title(case) and not x["default"] and not x["error"]]
    if not others:
        return ""
    reloads = f"{sum(x['local'] for x in loops)} of {sum(x['instructions'] for x in loops):,} instructions"
    free = [(cost, x) for x in others if not stack(x) and (cost := slots(x)) is not None]
    if not free:
        return f"{reloads}; so do all {len(others)} others that were compiled"
    cost, best = min(free, key=lambda pair: pair[0])
    if cost <= mine:
        return ""
    return f"{reloads}; without {cost / mine - 1:+.0%} issue slots ({variant_text(best['variant'])})"


def unexplained(report: Report, spill: int = 0) -> list[dict[str, Any]]:
    """Return the cases that do not compile, and default variants with a `problem` but no `reason`."""
    return [
        case
        for case in report["cases"]
        if case["error"] or (is_picked(case) and problem(case, spill) and not reason(case, report))
    ]


def problems(report: Report, spill: int = 0) -> list[str]:
    """Describe the `unexplained` cases, one line each."""
    return [
        f"{title(case)} {variant_text(case['variant'])}, jax {version(report)}: {problem(case, spill)}"
        for case in unexplained(report, spill)
    ]


def as_markdown(reports: Sequence[Report], spill: int = 0) -> str:
    """Return one page: the toolchains, the columns' meaning, and a row per kernel that calls get."""
    columns = COMPARED if len(reports) > 1 else [heading for heading, _, _ in COLUMNS]
    lines = [
        "# Resources of the kernels on an H200",
        "",
        "This page lists the registers, the shared memory and the instructions of each kernel, as compiled "
        "for an H200.",
        "",
        "Written by `python -m benchmarks inspect --markdown`. The kernels were compiled, not run: no GPU "
        "was used.",
        "",
        *(f"- Compiled with {', '.join(map(' '.join, x['toolchain'].items()))}." for x in reports),
        "",
        *(f"- {heading}: {meaning}" for heading, meaning, _ in COLUMNS if heading in columns),
        "- spilled because: the cost of the spills in that loop, and the cost of the best variant without "
        "spills",
        *["- an empty cell: that version's report lacks the kernel"] * (len(reports) > 1),
        "",
        *_table(reports, columns),
        "",
    ]
    for report in reports:
        picked = [case for case in report["cases"] if is_picked(case)]
        spilling = sum(stack(case) > spill for case in picked)
        found = problems(report, spill)
        lines += [
            f"jax {version(report)}: {spilling or 'none'} of the {len(picked)} variants that calls get spill "
            f"registers. Problems without a reason: {len(found) or 'none'}.",
            "",
        ]
        lines += [*(f"- {line}" for line in found), ""] if found else []
    asked = [
        f"- {title(case)}, jax {version(report)}: {text}"
        for report in reports
        for case in report["cases"]
        if case["default"] and case["on_request"] and (text := problem(case, spill))
    ]
    if asked:
        lines += ["Only calls that name the implementation run these:", "", *asked]
    return "\n".join(lines).rstrip() + "\n"


def _table(reports: Sequence[Report], columns: Sequence[str]) -> list[str]:
    """Return lines of a table with the columns of each report side by side."""
    several = len(reports) > 1
    cells: dict[tuple[str, str], dict[int, list[str]]] = {}
    reasons: dict[tuple[str, str], list[str]] = {}
    for index, report in enumerate(reports):
        for case in report["cases"]:
            if not case["default"]:
                continue
            for name, *row in rows_of(case, columns):
                key = name, variant_text(case["variant"])
                cells.setdefault(key, {})[index] = row
                if text := reason(case, report):
                    reasons.setdefault(key, []).append(f"{version(report)}: {text}" if several else text)
    headings = [f"{heading}, {version(x)}" if several else heading for x in reports for heading in columns]
    rows = []
    for key, found in cells.items():
        texts = [text for index in range(len(reports)) for text in found.get(index, [""] * len(columns))]
        rows.append([*key, *texts, "; ".join(reasons.get(key, []))])
    return markdown.table(["case", "variant", *headings, "spilled because"], rows, words=(0, 1, -1))


CHUNKS = 131_072
"""Work units: 64 tokens each, in 16 rows of 32,768 tokens and 16 heads."""

SLOTS_PER_MILLISECOND = 132 * 1.7e6
"""Issue slots of an H200: one per cycle and multiprocessor (see `Loop.issue_slots`), at 1.7 GHz."""


def expected(reports: Sequence[Report]) -> list[str]:
    """Predict the passes of Taylor attention at K 16, V 64 in bfloat16."""
    headings = ["registers", "stack B", "programs per SM", "issue slots", "tensor cycles", "bound, ms"]
    rows = []
    for name in ("key_sums", "outputs", "query_sums", "dq", "dk", "dv"):
        for report in reports:
            kernel, issue, tensor = _picked(report, f"taylor_attention/{name} K16 V64 bfloat16")
            bound = max(issue, tensor) * CHUNKS / SLOTS_PER_MILLISECOND
            taken = (kernel[key] for key in ("registers", "stack", "blocks_per_sm"))
            times = f"{issue:,.0f}", f"{tensor:,.0f}", f"{bound:.2f}", f"{bound / PEAK_SHARE:.1f}"
            rows.append([f"`{name}`", version(report), *taken, *times])
    headings = ["kernel", "jax", *headings, f"at {PEAK_SHARE * 100:.0f} %, ms"]
    return markdown.table(headings, rows, words=(0, 1))


def hopper(reports: Sequence[Report]) -> list[str]:
    """Compare the forward pass on Hopper's own instructions with the portable one, for 128 tokens."""
    rows = []
    for packed in ("", " packed"):
        for name, words in (("outputs", "portable"), ("outputs_mosaic", "Mosaic GPU")):
            for report in reports:
                case = f"taylor_attention/{name} K16 V64 bfloat16{packed}"
                kernel, issue, tensor = _picked(report, case)
                cells = [words + packed.replace(" ", ", "), version(report), kernel["registers"]]
                rows.append([*cells, kernel["stack"], f"{2 * issue:,.0f}", f"{2 * tensor:,.0f}"])
    headings = ["`outputs`, K 16, V 64", "jax", "registers", "stack B", "issue slots", "tensor cycles"]
    return markdown.table(headings, rows, words=(0, 1))


def _picked(report: Report, name: str) -> tuple[dict[str, Any], float, float]:
    """Return the one kernel of a case; its main loop's issue slots and tensor cycles for 64 tokens."""
    for case in report["cases"]:
        if case["default"] and title(case) == name and not case["error"]:
            (kernel,) = case["kernels"]
            loop, rounds = kernel["loop"], case["rounds"]
            return kernel, loop["issue_slots"] * rounds, loop["tensor_cycles"] * rounds
    raise ValueError(f"the report of jax {version(report)} has no {name} that compiles")


TABLES: dict[str, Callable[[Sequence[Report]], list[str]]] = {"expected": expected, "hopper": hopper}
"""Name of the markers ``<!-- name -->`` and ``<!-- /name -->`` -> lines of the table between them."""


def update(page: Path, reports: Sequence[Report]) -> None:
    """Rewrite the tables between their markers.

    Raises:
        ValueError: the page lacks the markers, or a report lacks the table's numbers.
    """
    text = page.read_text()
    found = [name for name in TABLES if markdown.between_markers(text, name, "") is not None]
    if not found:
        markers = ", ".join(f"<!-- {name} --> ... <!-- /{name} -->" for name in TABLES)
        raise ValueError(f"{page} has none of the markers {markers}")
    for name in found:
        text = markdown.between_markers(text, name, "\n".join(TABLES[name](reports))) or text
    page.write_text(text)
