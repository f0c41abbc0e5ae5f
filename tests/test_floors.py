"""The floors of the library: what a package imports is on a floor below it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

FLOORS = (
    ("data", "ops"),
    ("mixers",),
    ("models", "testing"),
    ("convert", "published"),
    ("generate", "profile"),
    ("evals", "export", "serve", "training"),
    ("experiments", "nnx"),
    ("reports", "theory"),
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


def test_every_package_has_its_floor():
    assert set(PACKAGES) <= HEIGHT.keys()


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_import_from_below(name):
    for path in (ROOT / "based_jax" / name).rglob("*.py"):
        higher = {other for other in packages_of(path) - {name} if HEIGHT[other] >= HEIGHT[name]}
        assert not higher, f"{path.relative_to(ROOT)} imports {', '.join(sorted(higher))}"


def test_files_beside_the_packages_import_none():
    """But `__init__`, which has the public names of several."""
    for path in (ROOT / "based_jax").glob("*.py"):
        assert path.name == "__init__.py" or not packages_of(path), path


@pytest.mark.parametrize("name", ["based_jax", "pallas_kernels"])
def test_the_library_imports_no_scripts_and_no_tests(name):
    for path in (ROOT / name).rglob("*.py"):
        roots = {module.partition(".")[0] for module in imported(path)}
        assert not roots & {"train", "benchmarks", "tests"}, path


def test_kernels_stand_on_their_own():
    for path in (ROOT / "pallas_kernels").rglob("*.py"):
        assert "based_jax" not in {module.partition(".")[0] for module in imported(path)}, path


def test_ops_are_functions_without_flax():
    for path in (ROOT / "based_jax" / "ops").rglob("*.py"):
        assert "flax" not in {module.partition(".")[0] for module in imported(path)}, path
