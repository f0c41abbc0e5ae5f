"""How every command of the project parses its flags and reports errors: one line on stderr, exit status 2."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pallas_kernels import flags
from pallas_kernels.flags import fail, run

__all__ = ["fail", "parse", "run"]

Options = TypeVar("Options")


def parse(
    options: Callable[..., Options],
    argv: Sequence[str] | None,
    *,
    prog: str,
    default: Options | None = None,
) -> Options:
    """Build `options` (a dataclass) from flags; a switch ``--x`` comes with its opposite, ``--no-x``.

    Arguments and errors are those of `pallas_kernels.flags.parse`.
    """
    return flags.parse(options, argv, prog, default=default, pairs=True)
