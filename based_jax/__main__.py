"""The console command ``based-jax NAME FLAGS``, also ``python -m based_jax NAME FLAGS``, and their list."""

import ast
import functools
import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import based_jax
from based_jax.command import CONSOLE, fail, run
from based_jax.validate import nearest

USAGE = f"""{CONSOLE} NAME [flags], where NAME is one of these; each explains its flags with --help.

{{}}

{CONSOLE} --version prints the version. docs/guide.md is about Python, docs/training.md about a first run."""

_HAS_MAIN = re.compile(r"^def main\(argv\b|^STUDY = ", re.M)
_GROUPS = {"": "", "train": "training/commands", "eval": "evals", "experiments": "experiments"}
"""first word of a console command -> directory of its files"""
_CODE = re.compile(r"``.*?``")
_WIDTH = 80


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command that the first one or two words name, ``_`` as ``-``, and exit with its status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        run(CONSOLE, functools.partial(print, based_jax.__version__), cached=False)
    known = console_commands(Path(__file__).parent)
    for count in (2, 1):
        name = " ".join(words[:count]).replace("_", "-")
        if name in known:
            run(f"{CONSOLE} {name}", functools.partial(_main_of(known[name][0]), words[count:]))
    group = "".join(word for word in words[:1] if not word.startswith("-"))
    inside = {name: text for name, (_, text) in known.items() if not group or name.split()[0] == group}
    if inside and words[bool(group) :] in ([], ["-h"], ["--help"]):
        run(CONSOLE, functools.partial(print, USAGE.format(table(inside))), cached=False)
    wrong = " ".join(words[: 2 if inside else 1])
    choices = inside if group and inside else dict.fromkeys(name.split()[0] for name in known)
    fail(CONSOLE, f"{wrong}: expected one of {', '.join(choices)}{nearest(wrong, [*choices, *known])}")


def _main_of(module: str) -> Callable[[Sequence[str]], int | None]:
    """Return the main function of a command's module; studies of recall share one."""
    command = importlib.import_module(module)
    if hasattr(command, "main"):
        return command.main
    return functools.partial(importlib.import_module("based_jax.experiments.study").main, command.STUDY)


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


def table(found: dict[str, str]) -> str:
    """Return the commands in 80 columns, those without a group first, then group by group."""
    groups: dict[str, list[str]] = {}
    for name in sorted(found, key=lambda name: (name.count(" "), name)):
        groups.setdefault(name.rpartition(" ")[0], []).append(name)
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


if __name__ == "__main__":
    main()
