"""The API reference: every public name is on a page and has a docstring."""

import importlib
import types

import pytest

from tests.docs.scripts import script
from tests.floors import ROOT

api = script("api")

OTHERS = {"Array", "Bool", "Float", "Int"}
"""Public names of based_jax.typing that are jaxtyping's own, which documents them."""

MODULES = sorted({module for modules in (api.PAGES | api.COMMAND_PACKAGES).values() for module in modules})


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module):
    names = api.public_names(module)
    assert names, module
    missing = [name.name for name in names if not name.docstring.strip()]
    assert {name for name in missing if name.removeprefix("based_jax.typing.") not in OTHERS} == set()


@pytest.mark.parametrize("module", [module for module in MODULES if not module.endswith(".lm_eval.model")])
def test_public_names_can_be_imported_from_where_the_reference_has_them(module):
    found = importlib.import_module(module)
    for name in api.public_names(module):
        assert hasattr(found, name.name.rpartition(".")[2]), name.name


@pytest.mark.parametrize("module", ["based_jax", "based_jax.ops", "pallas_kernels", "based_jax.typing"])
def test_the_sources_are_read_as_python_reads_them(module):
    listed = importlib.import_module(module).__all__
    assert {name.name for name in api.public_names(module)} == {f"{module}.{name}" for name in listed}


def test_a_name_without_a_docstring_is_noticed(monkeypatch, tmp_path):
    (tmp_path / "some").mkdir()
    (tmp_path / "some/__init__.py").write_text("from some.part import a as a\nfrom some.part import B as B\n")
    (tmp_path / "some/part.py").write_text('def a():\n    pass\n\n\nB = 1\n"""Number of all."""\n')
    monkeypatch.setattr(api, "ROOT", tmp_path)
    found = {name.name: (name.source, name.kind, name.docstring) for name in api.public_names("some")}
    assert found == {
        "some.a": ("some.part.a", "function", ""),
        "some.B": ("some.part.B", "value", "Number of all."),
    }


def test_every_page_of_the_reference_is_in_the_navigation():
    lines = (ROOT / "mkdocs.yml").read_text().splitlines()
    listed = {line.rpartition(": ")[2] for line in lines if "api/" in line}
    assert listed == {f"api/{page}.md" for page in api.PAGES | api.COMMAND_PACKAGES}


def test_every_package_has_a_page_or_a_reason():
    """Those without one are commands and their parts; reference/commands.md has them."""
    commands = {"experiments", "reports", "serve"}
    packages = {path.parent.name for path in (ROOT / "based_jax").glob("*/__init__.py")}
    assert packages - commands == packages & {*api.PAGES, *api.COMMAND_PACKAGES}
    assert isinstance(importlib.import_module("based_jax.serve"), types.ModuleType)
