"""The API reference: every public name is on a page and has a docstring, with the shapes of its arrays."""

import ast
import importlib
import re
import types
from collections.abc import Iterator

import pytest

from tests.docs.scripts import script
from tests.floors import ROOT

api = script("api")

OTHERS = {"Array", "Bool", "Float", "Int"}
"""Public names of based_jax.typing that are jaxtyping's own, which documents them."""

HOOKS = {"setup": "Flax calls it; what it defines is documented by the class"}
"""Public methods that need no docstring, and why."""

SHAPELESS = {"key", "rng", "rngs"}
"""Arguments that are random keys, which have no axes."""

ARRAYS = {"Array", "jax.Array", "np.ndarray", "ArrayLike"}
"""Annotations without a shape."""

SHAPED = re.compile(r"^(?:Bool|Float|Int|Key|Shaped|UInt)\d*$")
"""jaxtyping's annotations, whose text is the shape."""

_AXIS = r"\*?[\w.']+(?: [-+*/] \w+)*"
SHAPE = re.compile(rf"\((?:{_AXIS},\s*)+(?:{_AXIS})?\)|\bscalars?\b|\bshapes?\b")
"""What states a shape in a docstring: (B, N, D), (N,), "scalar", or the word itself."""

MODULES = sorted({module for modules in (api.PAGES | api.COMMAND_PACKAGES).values() for module in modules})


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_method_and_property_has_a_docstring(module):
    names = api.public_names(module)
    assert names, module
    missing = {name.name for name in names if not name.docstring.strip()}
    assert {name for name in missing if name.removeprefix("based_jax.typing.") not in OTHERS} == set()
    callables = [member for member in members(module) if not isinstance(member.node, ast.AnnAssign)]
    missing = {member.name for member in callables if not member.docstring.strip()}
    assert {name for name in missing if name.rpartition(".")[2] not in HOOKS} == set()


@pytest.mark.parametrize("module", MODULES)
def test_every_array_has_a_shape(module):
    """In the signature, as jaxtyping writes it, or in the docstring."""
    missing = [
        f"{member.name}: {', '.join(arrays)}"
        for member in members(module)
        if (arrays := list(without_shape(member.node))) and not SHAPE.search(member.docstring)
    ]
    assert missing == []


def members(module: str) -> Iterator[api.Member]:
    """Yield everything that the reference documents of a module."""
    for name in api.public_names(module):
        yield from api.members(name.source)


def without_shape(node: ast.AST) -> Iterator[str]:
    """Yield the arguments, results and fields of a definition that are arrays of an unknown shape."""
    if isinstance(node, ast.AnnAssign):
        arguments = {"field": node.annotation}
    elif isinstance(node, ast.FunctionDef):
        a = node.args
        listed = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
        arguments = {x.arg: x.annotation for x in listed if x.annotation} | {"result": node.returns}
    else:  # a class, whose members come on their own
        arguments = {}
    for name, annotation in arguments.items():
        if name not in SHAPELESS and has_bare_array(annotation):
            yield name


def has_bare_array(annotation: ast.AST | None) -> bool:
    """Whether an annotation names an array outside of jaxtyping's brackets."""
    if annotation is None or isinstance(annotation, ast.Name | ast.Attribute):
        return annotation is not None and ast.unparse(annotation) in ARRAYS
    if isinstance(annotation, ast.Subscript) and SHAPED.match(ast.unparse(annotation.value)):
        return False
    return any(map(has_bare_array, ast.iter_child_nodes(annotation)))


@pytest.mark.parametrize("module", [module for module in MODULES if not module.endswith(".lm_eval.model")])
def test_public_names_can_be_imported_from_where_the_reference_has_them(module):
    found = importlib.import_module(module)
    for name in api.public_names(module):
        assert hasattr(found, name.name.rpartition(".")[2]), name.name


@pytest.mark.parametrize("module", ["based_jax", "based_jax.ops", "pallas_kernels", "based_jax.typing"])
def test_the_sources_are_read_as_python_reads_them(module):
    listed = importlib.import_module(module).__all__
    assert {name.name for name in api.public_names(module)} == {f"{module}.{name}" for name in listed}


def test_every_op_has_a_group():
    groups = api.groups("based_jax.ops")
    assert {*groups} == {*importlib.import_module("based_jax.ops").__all__}
    assert groups["taylor_attention"] == "Linear attention"
    assert not api.groups("based_jax.ops.conv_basis")


def test_every_page_of_the_reference_is_in_the_navigation():
    lines = (ROOT / "mkdocs.yml").read_text().splitlines()
    listed = {line.rpartition(": ")[2] for line in lines if "api/" in line}
    assert listed == {f"api/{page}.md" for page in api.PAGES | api.COMMAND_PACKAGES}


def test_every_package_has_a_page_or_a_reason():
    """Those without one are commands and their parts; reference/commands.md has them."""
    commands = {"compare", "experiments", "serve"}
    packages = {path.parent.name for path in (ROOT / "based_jax").glob("*/__init__.py")}
    assert packages - commands == packages & {*api.PAGES, *api.COMMAND_PACKAGES}
    assert isinstance(importlib.import_module("based_jax.serve"), types.ModuleType)
