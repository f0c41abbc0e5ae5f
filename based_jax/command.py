"""Parse flags of the project's commands and report errors: one line on stderr, exit status 2."""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar, cast

from based_jax.compilation_cache import keep_programs
from based_jax.grouped_help import grouped_help
from pallas_kernels import flags
from pallas_kernels.flags import fail, name_of

__all__ = ["fail", "find_value", "name_of", "parse", "run"]

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

    `groups`, title -> fields, groups the flags in the help. For other arguments see
    `pallas_kernels.flags.parse`.
    """
    words = sys.argv[1:] if argv is None else argv
    if groups is not None and {"-h", "--help"} & set(words):
        print(grouped_help(name_of(prog), cast(type, options), groups))
        raise SystemExit(0)
    return flags.parse(options, argv, prog, default=default, pairs=True)


def find_value(words: Sequence[str], flag: str) -> str | None:
    """Return the value of `flag` (such as "--workdir") in an unparsed command line; None if it is absent.

    As in `parse`, the value is the next word or follows an equals sign, and the last of several wins.
    """
    found = None
    for word, after in itertools.zip_longest(words, words[1:]):
        name, is_joined, value = word.partition("=")
        if name == flag:
            found = value if is_joined else after
    return found


def run(prog: str, main: Callable[[], int | None]) -> NoReturn:
    """Run a command by `pallas_kernels.flags.run`, with compiled programs cached on disk."""
    keep_programs()
    flags.run(prog, main)
