"""The reference numbers on disk: which cases there are, and one case's arrays, tolerances and comparisons."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.tolerances import assert_close

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
ROUNDINGS = 10
"""A tolerance is this many times the error that the authors' own float32 run has against float64."""
OUTPUT_FLOOR = 3e-6
"""Tolerance of outputs that happen to be more exact than that."""
GRADIENT_FLOOR = 3e-5
"""The same of gradients, which are stored with 15 bits."""

VANISHING = 1e-12
"""A float64 gradient of this size beside the largest one is rounding: zero is what ours is compared with."""


def discover(directory: Path) -> Iterator[Path]:
    """One path per .npz file, and one per weight file of each checkpoint directory."""
    for path in sorted(directory.rglob("*")):
        beside = {file.name for file in path.parent.iterdir()}
        of_checkpoint = {"config.json", "logits.npz"} <= beside
        if (path.name in WEIGHTS) if of_checkpoint else (path.suffix == ".npz"):
            yield path


@dataclass
class Fixture:
    """One .npz file. Comparisons are remembered, so that a forgotten output is noticed."""

    path: Path
    errors: dict[str, float] = field(default_factory=dict)
    """by name of an array: its largest error over its tolerance"""

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.path) as file:
            return {name: file[name] for name in file.files if name != "meta"}

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        with np.load(self.path) as file:
            return json.loads(str(file["meta"]))

    def group(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays called `prefix:name`, by name."""
        prefix += ":"
        return {
            name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)
        }

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The module's arguments in order."""
        return {name: array for name, array in self.group("in").items() if name != "cotangent"}

    def tolerance(self, name: str) -> float:
        """Relative to the array's largest magnitude, from the measured error of that or the main output."""
        measured = self.meta.get("err32", {})
        if name.startswith("grad"):
            return max(ROUNDINGS * measured.get("grad", 0.0), GRADIENT_FLOOR)
        return max(ROUNDINGS * measured.get(name, measured.get("y", 0.0)), OUTPUT_FLOOR)

    def compare(self, name: str, ours: Any, theirs: Any = None, tolerance: float | None = None) -> None:
        """Compare with the output called `name`, or with `theirs`, a part of it or something like it."""
        theirs = self.arrays[f"out:{name}"] if theirs is None else theirs
        tolerance = self.tolerance(name) if tolerance is None else tolerance
        assert_close(ours, theirs, tolerance, name)
        scale = np.abs(theirs).max() or 1.0
        error = float(np.abs(np.asarray(ours, np.float64) - theirs).max() / scale)
        self.errors[name] = max(self.errors.get(name, 0.0), error / tolerance)

    def compare_gradients(self, ours: dict[str, Any]) -> None:
        """Compare all gradients, by torch key or `in:name`; those without influence are not stored."""
        stored = self.group("grad")
        rows = self.group("gradrows8")
        largest = max((np.abs(gradient).max() for gradient in stored.values()), default=0.0)
        unknown = sorted((stored.keys() | rows.keys()) - ours.keys())
        assert not unknown, f"stored gradients that we have no parameter for: {unknown}"
        for name, gradient in ours.items():
            if name in stored:
                theirs = stored[name]
                if np.abs(theirs).max() < VANISHING * largest:
                    gradient, theirs = gradient / largest, np.zeros_like(theirs)
                self.compare(f"grad:{name}", gradient, theirs)
            elif name in rows:
                self.compare(f"gradrows8:{name}", gradient[::8], rows[name])
            else:
                assert not np.any(gradient), f"{name} has a gradient here, but none is stored"

    def expect_all_compared(self) -> None:
        """Fail if an output has not been looked at."""
        forgotten = sorted(self.group("out").keys() - self.errors.keys())
        assert not forgotten, f"{self.path.stem}: outputs without a comparison: {forgotten}"
