"""Keep results of several models in one directory, a JSON file for each, and draw figures of their page."""

import re
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from based_jax import html_page, plot
from based_jax.evals.options import write_json
from based_jax.files import read_json
from based_jax.plot import Panel
from based_jax.validate import expect

_NAME = re.compile(r"[\w][\w.\- ]*")


def add_result(directory: Path, result: Mapping[str, Any], keys: Set[str]) -> tuple[Path, list[Any]]:
    """Write a result as NAME.json into a directory, which is made if needed.

    Returns:
        Its path, and all results of the directory, see `results_in`.

    Raises:
        ValueError: a name that is no file name, or another JSON file in the directory without the keys.
    """
    name = result["name"]
    expect(bool(_NAME.fullmatch(name)), "name", name, "letters, digits, spaces, dots, - and _")
    path = directory / f"{name}.json"
    write_json(path, result)
    return path, results_in(directory, keys)


def results_in(directory: Path, keys: Set[str]) -> list[Any]:
    """Read all results of a directory, in the order of their names; each must have these keys."""
    results = []
    for path in sorted(directory.glob("*.json")):
        result = read_json(path)
        is_result = isinstance(result, dict) and result.keys() >= keys
        expect(is_result, "directory", str(path), f"only files with {', '.join(sorted(keys))}")
        results.append(result)
    return results


def figure(title: str, panels: Sequence[Panel], columns: int | None = None) -> list[str]:
    """Return the element that shows these panels; none without matplotlib."""
    if plot.missing():
        return []
    with tempfile.TemporaryDirectory() as folder:
        png = Path(folder) / "figure.png"
        plot.draw(title, "", panels, png, columns)
        return [html_page.image(png, title)]
