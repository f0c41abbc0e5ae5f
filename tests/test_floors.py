"""The floors of the library: what a package imports is on a floor below it."""

import pytest

from tests.floors import HEIGHT, PACKAGES, ROOT, imported, packages_of


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
        assert not roots & {"train", "benchmarks", "papers", "tests"}, path


def test_kernels_stand_on_their_own():
    for path in (ROOT / "pallas_kernels").rglob("*.py"):
        assert "based_jax" not in {module.partition(".")[0] for module in imported(path)}, path


def test_ops_are_functions_without_flax():
    for path in (ROOT / "based_jax" / "ops").rglob("*.py"):
        assert "flax" not in {module.partition(".")[0] for module in imported(path)}, path


def test_one_file_of_the_library_uses_orbax():
    """Orbax 1.0 will replace the interface that it uses."""
    files = [path for name in ("based_jax", "benchmarks", "train") for path in (ROOT / name).rglob("*.py")]
    users = [path for path in files if "orbax" in {module.partition(".")[0] for module in imported(path)}]
    assert users == [ROOT / "based_jax" / "training" / "run" / "checkpoints.py"]
