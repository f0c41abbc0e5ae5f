"""List a package's commands, from the docstrings of its modules."""

import ast
import difflib
import functools
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from based_jax.command import fail

_IS_COMMAND = re.compile(r'^if __name__ == "__main__":', re.M)
_HAS_MAIN = re.compile(r"^def main\(argv\b|^STUDY = ", re.M)
_GROUPS = {"": "", "train": "training/commands", "eval": "evals", "experiments": "experiments"}
"""first word of a console command -> directory of its files"""
_NO_COMMANDS = ("runner.py",)  # runs as run.py of an exported directory
_CODE = re.compile(r"``.*?``")
_WIDTH = 80


def commands(package: str, root: Path) -> dict[str, str]:
    """Return module -> purpose for every module below `root` that is a command, without importing them."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join([package, *(part for part in parts if part != "__main__")])
        if name != package and path.name not in _NO_COMMANDS and _IS_COMMAND.search(text):
            found[name] = _purpose(text)
    return found


def console_commands(root: Path) -> dict[str, tuple[str, str]]:
    """Return name (such as "train lm") -> module and purpose of based_jax's commands, without imports."""
    found = {}
    for group, folder in _GROUPS.items():
        for path in sorted([*(root / folder).glob("*.py"), *(root / folder).glob("*/__main__.py")]):
            name = (path.parent.name if path.stem == "__main__" else path.stem).replace("_", "-")
            text = path.read_text(encoding="utf-8")
            if path != root / "__main__.py" and _HAS_MAIN.search(text):
                parts = path.relative_to(root).with_suffix("").parts
                found[f"{group} {name}".strip()] = ".".join(["based_jax", *parts]), _purpose(text)
    return found


def main(package: str, root: Path, remarks: str, argv: Sequence[str]) -> int:
    """Print the commands of a package below `root`, then `remarks`; return the exit status.

    `argv` is ``--help`` or nothing; anything else is an error that names the nearest command.
    """
    found = commands(package, root)
    if argv and argv[0] not in ("-h", "--help"):
        near = difflib.get_close_matches(f"{package}.{argv[0]}", found, 1) or ["NAME"]
        fail(f"python -m {package}", f"{argv[0]}: expected no arguments: run python -m {near[0]}")
    print("python -m NAME, where NAME is one of these; each explains its flags with --help.")
    print(f"\n{table(found)}\n\n{textwrap.fill(remarks, _WIDTH)}")
    return 0


def table(found: dict[str, str], dot: str = ".") -> str:
    """Return the commands in 80 columns, those directly below the package first, then group by group."""
    groups: dict[str, list[str]] = {}
    for name in sorted(found, key=lambda name: (name.count(dot), name)):
        groups.setdefault(name.rpartition(dot)[0], []).append(name)
    texts = []
    for names in groups.values():
        width = max(map(len, names)) + 2
        fill = functools.partial(textwrap.fill, width=_WIDTH, subsequent_indent=" " * width)
        texts.append("\n".join(fill(found[name], initial_indent=f"{name:{width}}") for name in names))
    return "\n\n".join(texts)


def _purpose(source: str) -> str:
    """Return a docstring's first line without the command itself: the text before it, else the text after."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    parts = _CODE.split(docstring.partition("\n")[0])
    text = next(filter(None, (part.strip(" :.") for part in parts)), "")
    return text[:1].upper() + text[1:]


def run(package: str, file: str, remarks: str) -> None:
    """Run the `__main__` of a package, whose `__file__` is `file`."""
    sys.exit(main(package, Path(file).parent, remarks, sys.argv[1:]))
