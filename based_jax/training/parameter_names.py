"""Names of parameters, by which optimizers treat them."""

from typing import Any

FILTER = "filter"
"""Name of the filter of every long convolution in the tree of parameters."""


def names_of(path: tuple[Any, ...]) -> list[str]:
    """Return the keys on a parameter's path; the box of logical axis names is an entry without key."""
    return [str(entry.key) for entry in path if getattr(entry, "key", "")]
