"""The floors of the library, and what its files import: for tests and for docs/architecture.py."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

FLOORS = (
    ("data", "ops"),
    ("mixers",),
    ("models", "testing"),
    ("convert", "published"),
    ("generate", "profile"),
    ("evals", "export", "serve", "training"),
    ("experiments", "nnx"),
    ("compare",),
)
"""Packages, from the lowest floor up; below them are the files beside them, and `pallas_kernels`."""

HEIGHT = {name: height for height, names in enumerate(FLOORS, start=1) for name in names}

PACKAGES = sorted(
    path.name for path in (ROOT / "based_jax").iterdir() if path.is_dir() and list(path.rglob("*.py"))
)


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in it, by their full names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_of(path: Path) -> set[str]:
    """The packages of `based_jax` that a file imports; files beside the packages are none."""
    parts = (name.split(".") for name in imported(path))
    return {part[1] for part in parts if part[0] == "based_jax" and len(part) > 1} & {*PACKAGES}
