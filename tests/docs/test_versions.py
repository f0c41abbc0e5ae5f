"""The versions that docs/install.md lists as tested fit what pyproject.toml allows.

tests/docs/test_pages.py compares the page's table with the files.
"""

import json
import re
import tomllib

from tests.floors import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNS = [json.loads(path.read_text()) for path in sorted((ROOT / "results" / "versions").glob("*.json"))]


def minors(name: str) -> set[tuple[int, ...]]:
    """The tested minor versions of a package, or of Python."""
    return {tuple(map(int, run["versions"][name].split(".")[:2])) for run in RUNS}


def test_no_test_failed():
    assert all(run["passed"] and not run["failed"] for run in RUNS)


def test_each_python_of_the_classifiers_was_tested():
    named = re.findall(r"Python :: (\d+)\.(\d+)", "\n".join(PROJECT["classifiers"]))
    assert minors("python") == {tuple(map(int, pair)) for pair in named}
    assert PROJECT["requires-python"] == ">={}.{}".format(*min(minors("python")))


def test_the_oldest_and_the_newest_jax_were_tested():
    bounds = {line for line in PROJECT["dependencies"] if line.startswith("jax>")}
    (major, low), (_, high) = min(minors("jax")), max(minors("jax"))
    assert bounds == {f"jax>={major}.{low},<{major}.{high + 1}"}
