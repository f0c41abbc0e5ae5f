"""Another value for an entry of a config."""

from typing import Any


def changed(value: Any) -> Any:
    """Return a value of the same type that is not `value`; a number for None."""
    match value:
        case bool():
            return not value
        case int() | float():
            return 2 * value or 1
        case None:
            return 8
    return "other" if isinstance(value, str) else [2, 3]
