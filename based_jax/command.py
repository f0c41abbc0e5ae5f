"""How every command of the project parses its flags and reports errors: one line on stderr, exit status 2."""

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

    With `groups`, title -> fields, the help is in groups. All else is as in `pallas_kernels.flags.parse`.
    """
    words = sys.argv[1:] if argv is None else argv
    if groups is not None and {"-h", "--help"} & set(words):
        print(grouped_help(name_of(prog), cast(type, options), groups))
        raise SystemExit(0)
    return flags.parse(options, argv, prog, default=default, pairs=True)


def find_value(words: Sequence[str], flag: str) -> str | None:
    """Value of `flag` (such as "--workdir") in a command line, before it is parsed; None if it is not given.

    As in `parse`, the value is the next word or follows an equals sign, and of several the last one counts.
    """
    found = None
    for word, after in itertools.zip_longest(words, words[1:]):
        name, is_joined, value = word.partition("=")
        if name == flag:
            found = value if is_joined else after
    return found


def run(prog: str, main: Callable[[], int | None]) -> NoReturn:
    """Run a command as `pallas_kernels.flags.run` does, with compiled programs kept on disk."""
    keep_programs()
    flags.run(prog, main)
