"""``pytest tests/parity --fixtures DIR``: the promise about the command itself."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.subprocesses import run_module

FIXTURES = Path(__file__).parents[1] / "fixtures"

pytestmark = pytest.mark.slow  # a suite within the suite; tests/parity runs every time


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The command's outcome for one known and one unknown case."""
    directory = tmp_path_factory.mktemp("reference") / "deep"
    directory.mkdir()
    shutil.copy(FIXTURES / "based" / "short_convolution.npz", directory)
    np.savez(directory / "other.npz", meta=json.dumps({"module": "some.Thing"}), **{"in:x": np.ones(2)})
    return run_module("pytest", "tests/parity", "--fixtures", str(directory.parent), "-q", "-n0")


def test_finds_cases_below_the_directory_only(report):
    assert "1 failed, 1 passed" in report.stdout, report.stdout + report.stderr


def test_an_unknown_case_fails_by_name(report):
    assert report.returncode == 1
    assert "deep/other (some.Thing) has no equal here: module = 'some.Thing'" in report.stdout
