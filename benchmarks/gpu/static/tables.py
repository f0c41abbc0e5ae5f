"""Format the report of `static` on a terminal and in Markdown."""

from typing import Any

from benchmarks import tables

Report = dict[str, Any]


def text(report: Report) -> str:
    """Return a table of the programs, then one for each with its parts."""
    settings = report["settings"]
    rates = settings["rates"]
    tools = ", ".join(f"{name} {version}" for name, version in settings["toolchain"].items())
    lines = [
        f"Compiled for {settings['gpu']} in {settings['dtype']} with {tools}; not run. Floors at "
        f"{rates['bandwidth'] / 1e12:g} TB/s and {rates['products'] / 1e12:g} TFLOP/s.",
        "",
        tables.table(
            (
                "program",
                "floor, ms",
                "with cuDNN, ms",
                "tokens/s at most",
                "launches",
                "scratch, GB",
            ),
            map(_program, report["summary"], report["summary"].values()),
        ),
    ]
    for name in report["summary"]:
        # Older reports repeat the rows with cuDNN's attention.
        rows = [row for row in report["rows"] if name_of(row) == name and not row.get("cudnn")]
        total = sum(row["floor_seconds"] for row in rows)
        heads = (name, "GB", "TFLOP", "launches", "floor, ms", "share")
        lines += ["", tables.table(heads, (_part(row, total) for row in rows))]
    return "\n".join(lines)


def name_of(row: dict[str, Any]) -> str:
    """Describe a row's program, its key in the summary."""
    size = f"{row['batch']} {'after' if row['program'] == 'decode' else 'x'} {row['length']}"
    return f"{row['preset']}, {row['program']} {size}"


def _program(name: str, x: dict[str, Any]) -> list[str]:
    least = x["floor_seconds_with_cudnn"]
    cudnn = f"{1e3 * least:.3g}" if least != x["floor_seconds"] else tables.MISSING
    rate = f"{x['tokens'] / least:,.0f}"
    floor, launches = f"{1e3 * x['floor_seconds']:.3g}", f"{x['launches']:,.0f}"
    return [name, floor, cudnn, rate, launches, f"{x['scratch_bytes'] / 1e9:.2f}"]


def _part(row: dict[str, Any], total: float) -> list[str]:
    note = f" ({row['unknown']:.0f} kernels without a formula)" if row["unknown"] else ""
    sizes = f"{row['bytes'] / 1e9:.3g}", f"{row['flops'] / 1e12:.3g}", f"{row['launches']:,.0f}"
    return [
        row["part"] + note,
        *sizes,
        f"{1e3 * row['floor_seconds']:.3g}",
        f"{row['floor_seconds'] / total:.0%}",
    ]
