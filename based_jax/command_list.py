"""List the console commands, from the docstrings of their modules."""

import ast
import functools
import re
import textwrap
from pathlib import Path

_HAS_MAIN = re.compile(r"^def main\(argv\b|^STUDY = ", re.M)
_GROUPS = {"": "", "train": "training/commands", "eval": "evals", "experiments": "experiments"}
"""first word of a console command -> directory of its files"""
_CODE = re.compile(r"``.*?``")
_WIDTH = 80


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
