"""The console command ``based-jax NAME FLAGS``, also ``python -m based_jax NAME FLAGS``."""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import based_jax
from based_jax.command import CONSOLE, fail, run
from based_jax.command_list import console_commands, table
from based_jax.validate import nearest

USAGE = f"""{CONSOLE} NAME [flags], where NAME is one of these; each explains its flags with --help.

{{}}

{CONSOLE} --version prints the version. docs/guide.md is about Python, docs/training.md about a first run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first one or two words name, ``_`` as ``-``; return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        print(based_jax.__version__)
        return 0
    known = console_commands(Path(__file__).parent)
    for count in (2, 1):
        name = " ".join(words[:count]).replace("_", "-")
        if name in known:
            run(f"{CONSOLE} {name}", functools.partial(_main_of(known[name][0]), words[count:]))
    group = "".join(word for word in words[:1] if not word.startswith("-"))
    inside = {name: text for name, (_, text) in known.items() if not group or name.split()[0] == group}
    if inside and words[bool(group) :] in ([], ["-h"], ["--help"]):
        print(USAGE.format(table(inside)))
        return 0
    wrong = " ".join(words[: 2 if inside else 1])
    choices = inside if group and inside else dict.fromkeys(name.split()[0] for name in known)
    fail(CONSOLE, f"{wrong}: expected one of {', '.join(choices)}{nearest(wrong, [*choices, *known])}")


def _main_of(module: str) -> Callable[[Sequence[str]], int | None]:
    """Return the main function of a command's module; studies of recall share one."""
    command = importlib.import_module(module)
    if hasattr(command, "main"):
        return command.main
    return functools.partial(importlib.import_module("based_jax.experiments.study").main, command.STUDY)


if __name__ == "__main__":
    sys.exit(main())
