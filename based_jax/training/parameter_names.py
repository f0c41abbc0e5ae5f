"""Names of parameters, by which optimizers treat them."""

from collections.abc import Sequence
from typing import Any

FILTER = "filter"
"""Name of the filter of every long convolution in the tree of parameters."""


def names_of(path: tuple[Any, ...]) -> list[str]:
    """Return the keys on a parameter's path; the box of logical axis names is an entry without key."""
    return [str(entry.key) for entry in path if getattr(entry, "key", "")]


def kind_of(names: Sequence[str]) -> str:
    """Return "embeddings" (and heads), "norms", "weight matrices" or "others", by a parameter's path."""
    if len(names) == 1:
        return "embeddings"
    if any("norm" in name for name in names):
        return "norms"
    return "weight matrices" if names[-1] == "kernel" and FILTER not in names else "others"
