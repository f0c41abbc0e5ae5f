"""Lists of a package's commands, from the docstrings of its modules."""

import ast
import difflib
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from based_jax.command import fail

_IS_COMMAND = re.compile(r'^if __name__ == "__main__":', re.M)
_NO_COMMANDS = ("runner.py",)  # runs as run.py of an exported directory
_CODE = re.compile(r"``.*?``")
_WIDTH = 80


def commands(package: str, root: Path) -> dict[str, str]:
    """Module -> what it does, of every module below `root` that is a command; none of them is imported."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join([package, *(part for part in parts if part != "__main__")])
        if name != package and path.name not in _NO_COMMANDS and _IS_COMMAND.search(text):
            found[name] = _purpose(ast.get_docstring(ast.parse(text)) or "")
    return found


def main(package: str, root: Path, remarks: str, argv: Sequence[str]) -> int:
    """Print a package's commands; returns the exit status.

    Args:
        package: its name.
        root: its directory.
        remarks: printed after the list.
        argv: ``--help`` or nothing; anything else is an error that names the nearest command.
    """
    found = commands(package, root)
    if argv and argv[0] not in ("-h", "--help"):
        near = difflib.get_close_matches(f"{package}.{argv[0]}", found, 1) or ["NAME"]
        fail(f"python -m {package}", f"{argv[0]}: expected no arguments: run python -m {near[0]}")
    print("python -m NAME, where NAME is one of these; each explains its flags with --help.")
    print(f"\n{table(found)}\n\n{textwrap.fill(remarks, _WIDTH)}")
    return 0


def table(found: dict[str, str]) -> str:
    """The commands in 80 columns, those directly below the package first, then group by group."""
    groups: dict[str, list[str]] = {}
    for name in sorted(found, key=lambda name: (name.count("."), name)):
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return "\n\n".join("\n".join(_rows(names, found)) for names in groups.values())


def _rows(names: Sequence[str], found: dict[str, str]) -> list[str]:
    width = max(map(len, names)) + 2
    return [
        line
        for name in names
        for line in textwrap.wrap(
            found[name], _WIDTH, initial_indent=f"{name:{width}}", subsequent_indent=" " * width
        )
    ]


def _purpose(docstring: str) -> str:
    """The first line of a docstring without the command itself: the text before it, else the text after."""
    parts = _CODE.split(docstring.partition("\n")[0])
    text = next(filter(None, (part.strip(" :.") for part in parts)), "")
    return text[:1].upper() + text[1:]


def run(package: str, file: str, remarks: str) -> None:
    """The `__main__` of a package, whose `__file__` is `file`."""
    sys.exit(main(package, Path(file).parent, remarks, sys.argv[1:]))
