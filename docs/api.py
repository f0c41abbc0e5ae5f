"""The public names of the library, read from its sources: nothing is imported, so no JAX is needed.

The site's hook (`hooks.py`) makes the pages of the API reference from them, and tests/docs/test_api.py checks
that each has a docstring.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

PAGES: dict[str, tuple[str, ...]] = {
    "based_jax": ("based_jax",),
    "ops": ("based_jax.ops", "based_jax.ops.conv_basis"),
    "feature_maps": ("based_jax.ops.feature_maps",),
    "mixers": ("based_jax.mixers",),
    "models": ("based_jax.models", "based_jax.models.presets"),
    "data": ("based_jax.data", "based_jax.data.tasks"),
    "convert": ("based_jax.convert",),
    "generate": ("based_jax.generate",),
    "export": ("based_jax.export",),
    "nnx": ("based_jax.nnx",),
    "testing": ("based_jax.testing",),
    "profile": ("based_jax.profile",),
    "published": ("based_jax.published",),
    "typing": ("based_jax.typing",),
    "pallas_kernels": ("pallas_kernels",),
}
"""Page of the reference -> the modules whose public names it has."""

COMMAND_PACKAGES: dict[str, tuple[str, ...]] = {
    "training": (
        "based_jax.training.step",
        "based_jax.training.loop",
        "based_jax.training.optimizer",
        "based_jax.training.low_rank",
        "based_jax.training.lm_config",
        "based_jax.models.sharding",
    ),
    "evals": (
        "based_jax.evals",
        "based_jax.evals.perplexity.scoring",
        "based_jax.evals.recall.protocol",
        "based_jax.evals.lm_eval.model",
    ),
}
"""The same for packages that are mostly commands: the modules that scripts of your own may call."""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Public(NamedTuple):
    """A public name."""

    name: str
    """as a user imports it, such as ``based_jax.ops.taylor_attention``"""
    source: str
    """where it is defined, such as ``based_jax.ops.taylor_attention.taylor_attention``"""
    kind: str
    """"module", "class", "function" or "value\""""
    docstring: str
    """empty where there is none"""


class Member(NamedTuple):
    """A public function or class, or a method, property or field of such a class."""

    name: str
    """where it is defined, such as ``based_jax.mixers.gla.GLA.mix``"""
    node: "_Definition | ast.AnnAssign"
    """its definition"""
    docstring: str
    """its own, or else that of the method that it overrides; empty where there is none"""


def module_file(module: str) -> Path:
    """Return the file of a module of this repository.

    Raises:
        FileNotFoundError: there is none.
    """
    path = ROOT.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    raise FileNotFoundError(f"{module}: expected a module of this repository")


@functools.cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(module_file(module).read_text(encoding="utf-8"))


def public_names(module: str) -> list[Public]:
    """Return the public names of a module: `__all__`, its imports ``as`` themselves, or what it defines."""
    imports = _imports(module)
    names = _listed(module) or [name for name, (_, _, is_public) in imports.items() if is_public]
    names = names or [name for name in _defined(module) if not name.startswith("_")]
    return [_find(f"{module}.{name}", module, name, imports) for name in sorted(names, key=str.lower)]


def groups(module: str) -> dict[str, str]:
    """Return the comment above each name's block of imports, in the order of the file, if it has any."""
    found: dict[str, str] = {}
    comment = ""
    for line in module_file(module).read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and line != "# isort: off":
            comment = line[2:].replace("`", "")
        elif line.startswith("from ") and comment:
            found |= dict.fromkeys(re.findall(r"(\w+) as \1", line), comment)
    return found


def _listed(module: str) -> list[str]:
    """Return `__all__`, where it is a list of strings."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


@functools.cache
def _imports(module: str) -> dict[str, tuple[str, str, bool]]:
    """Name -> (module, its name there, whether it is imported ``as`` itself), also under TYPE_CHECKING."""
    return {
        alias.asname or alias.name: (node.module, alias.name, alias.asname == alias.name)
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }


def _defined(module: str) -> dict[str, tuple[str, str]]:
    """Name -> (kind, docstring) of what a module defines."""
    found: dict[str, tuple[str, str]] = {}
    body = tree_of(module).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, _Definition):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            found[node.name] = kind, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            text = after.value if isinstance(after, ast.Expr) else None
            docstring = text.value if isinstance(text, ast.Constant) else ""
            if isinstance(target, ast.Name):
                found[target.id] = "value", docstring if isinstance(docstring, str) else ""
    return found


def _find(public: str, module: str, name: str, imports: dict[str, tuple[str, str, bool]]) -> Public:
    """Follow imports to where a name is defined."""
    visited = set()
    while name not in _defined(module) and name in imports and (module, name) not in visited:
        visited.add((module, name))
        module, name, _ = imports[name]
        try:
            module_file(module)
        except FileNotFoundError:
            return Public(public, f"{module}.{name}", "value", "")
        imports = _imports(module)
    if name in _defined(module):
        return Public(public, f"{module}.{name}", *_defined(module)[name])
    docstring = ast.get_docstring(tree_of(f"{module}.{name}")) or ""
    return Public(public, f"{module}.{name}", "module", docstring)


def members(source: str) -> Iterator[Member]:
    """Yield what a name defined in this repository documents: itself and, of a class, its public members."""
    node = _definition(source)
    if node is None:  # a value or a module
        return
    yield Member(source, node, ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        for child, docstring in _children(node):
            name = _name_of(child)
            if not name.startswith("_") or name == "__call__":
                yield Member(f"{source}.{name}", child, docstring or _inherited(source, name))


def _definition(source: str) -> _Definition | None:
    """Return where a name is defined."""
    module, _, name = source.rpartition(".")
    try:
        body = tree_of(module).body
    except FileNotFoundError:
        return None
    found = [node for node in body if isinstance(node, _Definition) and node.name == name]
    return found[-1] if found else None


def _children(node: ast.ClassDef) -> Iterator[tuple[ast.FunctionDef | ast.AnnAssign, str]]:
    """Yield the methods, properties and annotated fields of a class, with their docstrings."""
    for child, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(child, ast.FunctionDef):
            yield child, ast.get_docstring(child) or ""
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            yield child, str(text.value) if isinstance(text, ast.Constant) else ""


def _name_of(child: ast.FunctionDef | ast.AnnAssign) -> str:
    return child.name if isinstance(child, ast.FunctionDef) else ast.unparse(child.target)


def _inherited(source: str, name: str) -> str:
    """Return the docstring that a member inherits from a base class of this repository."""
    node, module = _definition(source), source.rpartition(".")[0]
    imports = _imports(module)
    for base in node.bases if isinstance(node, ast.ClassDef) else ():
        word = ast.unparse(base).partition("[")[0]
        if word in imports or word in _defined(module):
            parent = _find(word, module, word, imports).source
            above = _definition(parent)
            own = _children(above) if isinstance(above, ast.ClassDef) else ()
            found = [text for child, text in own if _name_of(child) == name and text]
            docstring = found[0] if found else _inherited(parent, name) if above else ""
            if docstring:
                return docstring
    return ""


def everything() -> dict[str, list[Public]]:
    """Return the public names of every page of the reference."""
    return {
        page: [name for module in modules for name in public_names(module)]
        for page, modules in (PAGES | COMMAND_PACKAGES).items()
    }
