"""How every command of the project parses its flags and reports errors: one line on stderr, exit status 2."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from based_jax.grouped_help import grouped_help
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
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Options:
    """Build `options` (a dataclass) from flags; a switch ``--x`` comes with its opposite, ``--no-x``.

    Other arguments and errors are those of `pallas_kernels.flags.parse`.

    Args:
        groups: title -> fields, for a help in groups.
    """
    words = sys.argv[1:] if argv is None else argv
    if groups is not None and {"-h", "--help"} & set(words):
        print(grouped_help(prog, cast(type, options), groups))
        raise SystemExit(0)
    return flags.parse(options, argv, prog, default=default, pairs=True)
