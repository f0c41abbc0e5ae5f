"""The picture of the packages, from their imports: `python docs/architecture.py [--check]` writes it.

It writes figures/architecture.svg and the table of architecture.md. An arrow goes from a package to one that
it imports. The picture leaves out arrows that follow from others (a imports c by way of b).
"""

import argparse
import ast
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.floors import FLOORS, HEIGHT, ROOT, imported, packages_of

HERE = Path(__file__).resolve().parent
PICTURE, PAGE = Path("figures/architecture.svg"), Path("architecture.md")
BEGIN, END = "<!-- packages: python docs/architecture.py -->", "<!-- end of packages -->"
KERNELS = "pallas_kernels"
_BOX, _GAP, _ROW, _MARGIN, _WIDTH = (124, 30), 16, 66, 16, 624


def imports() -> dict[str, set[str]]:
    """Return the packages that each package imports, `pallas_kernels` among them."""
    found: dict[str, set[str]] = {KERNELS: set()}
    for name in HEIGHT:
        files = list((ROOT / "based_jax" / name).rglob("*.py"))
        found[name] = set().union(*map(packages_of, files)) - {name}
        roots = {module.partition(".")[0] for file in files for module in imported(file)}
        found[name] |= {KERNELS} & roots
    return found


def arrows(found: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that do not follow from others."""

    def below(name: str) -> set[str]:
        return found[name].union(*map(below, found[name]))

    return sorted(
        (name, other)
        for name, others in found.items()
        for other in others
        if not any(other in below(between) for between in others - {other})
    )


def picture(found: dict[str, set[str]]) -> str:
    """Return the drawing: a row for each floor, the lowest at the bottom."""
    paths = [[name, *_between(name, other), other] for name, other in arrows(found)]
    rows: list[list[str]] = [[KERNELS], *(list(names) for names in FLOORS)]
    for path in paths:
        for node in path[1:-1]:
            rows[int(node.partition("@")[2])].append(node)
    x = _columns(rows, [pair for path in paths for pair in itertools.pairwise(path)])
    top = {node: (len(rows) - 1 - row) * _ROW + _MARGIN for row, nodes in enumerate(rows) for node in nodes}
    height = len(rows) * _ROW - (_ROW - _BOX[1]) + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"',
        '  aria-label="Packages of based_jax and what they import" font-family="sans-serif" font-size="13">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0,1 L8,4 L0,7 z" fill="#607d8b"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
    ]
    for path in paths:
        line = f"M{x[path[0]]:.0f},{top[path[0]] + _BOX[1]}"
        for above, below in itertools.pairwise(path):
            start, end = top[above] + _BOX[1], top[below]
            if "@" in above:
                line += f" L{x[above]:.0f},{start}"
            middle = (start + end) // 2
            line += f" C{x[above]:.0f},{middle} {x[below]:.0f},{middle} {x[below]:.0f},{end}"
        parts.append(f'<path d="{line}" fill="none" stroke="#607d8b" marker-end="url(#tip)"/>')
    for node in itertools.chain.from_iterable(rows):
        if "@" not in node:
            fill = "#eceff1" if node == KERNELS else "#e0f2f1"
            parts.append(
                f'<rect x="{x[node] - _BOX[0] / 2:.0f}" y="{top[node]}" width="{_BOX[0]}" height="{_BOX[1]}" '
                f'rx="5" fill="{fill}" stroke="#00796b"/>'
                f'<text x="{x[node]:.0f}" y="{top[node] + 20}" text-anchor="middle" fill="#263238">'
                f"{node}</text>"
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _between(name: str, other: str) -> list[str]:
    """Return the points of an arrow on the floors between its ends, from the top: ``name>other@floor``."""
    return [f"{name}>{other}@{row}" for row in range(HEIGHT[name] - 1, HEIGHT.get(other, 0), -1)]


def _columns(rows: list[list[str]], lines: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the centre of each node, its row in the order with the shortest lines; sorts `rows`."""
    near: dict[str, list[str]] = {node: [] for node in itertools.chain.from_iterable(rows)}
    for above, below in lines:
        near[above].append(below)
        near[below].append(above)
    x: dict[str, float] = {}

    def spread(row: list[str]) -> None:
        widths = [_GAP if "@" in node else _BOX[0] for node in row]
        left = (_WIDTH - sum(widths) - _GAP * (len(row) - 1)) / 2
        for node, width in zip(row, widths, strict=True):
            x[node] = left + width / 2
            left += width + _GAP

    for row in rows:
        spread(row)
    for turn in range(24):  # alternately by the rows below and above
        for row in rows if turn % 2 == 0 else rows[::-1]:
            row.sort(key=lambda node: sum(x[other] for other in near[node]) / max(1, len(near[node])))
            spread(row)
    return x


def table(found: dict[str, set[str]]) -> str:
    """Return the table of packages, from the top floor down."""
    lines = ["| floor | package | what it has | imports |", "|---:|---|---|---|"]
    for height, names in sorted(enumerate(FLOORS, start=1), reverse=True):
        for name in names:
            text = (ROOT / "based_jax" / name / "__init__.py").read_text(encoding="utf-8")
            first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].replace("``", "`")
            others = ", ".join(f"`{other}`" for other in sorted(found[name])) or "none"
            lines.append(f"| {height} | `{name}` | {first} | {others} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture and the table, or report whether they are up to date; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args(argv).check
    found = imports()
    before, _, rest = (HERE / PAGE).read_text(encoding="utf-8").partition(BEGIN)
    page = f"{before}{BEGIN}\n{table(found)}\n{END}{rest.partition(END)[2]}"
    stale = 0
    for path, text in ((PICTURE, picture(found)), (PAGE, page)):
        if check and (not (HERE / path).is_file() or (HERE / path).read_text(encoding="utf-8") != text):
            print(f"docs/{path} is not up to date: run python docs/architecture.py", file=sys.stderr)
            stale = 1
        elif not check:
            (HERE / path).write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
