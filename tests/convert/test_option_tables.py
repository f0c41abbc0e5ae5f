"""The tables of the authors' options: well formed, true of our code, complete for what is read."""

import ast
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from based_jax import mixers
from based_jax.convert.authors_config import CLASSES, model_config
from based_jax.convert.authors_mamba import ATTENTION, MAMBA, MODEL
from based_jax.convert.fla_config import CLASSES as FLA_CLASSES
from based_jax.convert.fla_config import TRANSFORMERS
from based_jax.convert.fla_layers import ATTENTION as FLA_ATTENTION
from based_jax.convert.options.check import expect_known, tables
from based_jax.convert.options.option import STATUSES
from based_jax.models import MLP, Block, ModelConfig
from tests.conftest import ROOT
from tests.convert.test_model_options import BASE, CASES
from tests.convert.torch_files import CHECKPOINTS

FLA = {*FLA_CLASSES.values(), FLA_ATTENTION, TRANSFORMERS}
MODELS = {CLASSES["based"], CLASSES["attn"], MODEL, MAMBA, ATTENTION, "zoology.config.ModelConfig", *FLA}
"""Tables whose refusals `expect_known` enforces."""


@pytest.mark.parametrize("path", sorted(tables()))
def test_rows(path):
    for name, option in tables()[path].items():
        assert name == option.name
        assert option.status in STATUSES, name
        assert option.status in ("same", "renamed") or option.note, f"{name}: expected a reason"


@pytest.mark.parametrize("path", sorted(MODELS))
def test_defaults_of_refused_entries_are_values(path):
    for option in tables()[path].values():
        if option.status == "refused":
            value = ast.literal_eval(option.default)
            expect_known(path, {option.name: value}, "config")
            with pytest.raises(ValueError, match=f"config.{option.name} = 'x': expected"):
                expect_known(path, {option.name: "x"}, "config")


def test_our_names_exist():
    """Of a model's options: fields of its config, of a block or an MLP, or options of a mixer."""
    known = {field.name for cls in (ModelConfig, Block, MLP) for field in dataclasses.fields(cls)}
    for name in (
        "attention",
        "sliding_window",
        "mamba",
        "gla",
        "retnet",
        "delta_net",
        "gated_delta_net",
        "mamba2",
    ):
        known |= {*mixers.options(name)}
    for path in MODELS:
        for option in tables()[path].values():
            assert set(filter(None, option.ours.split(", "))) <= known, (path, option)


READERS = {
    "config": MODELS,
    "entries": MODELS,
    "meta": MODELS,
    "ssm": {MAMBA},
    "given": {ATTENTION, FLA_ATTENTION},
    "options": {path for path in tables() if path.startswith("based.models.mixers.")},
}
"""What the converter calls a config, an entry of one or a meta, and the tables of its entries."""

FILES = (
    *("authors_config", "authors_layers", "authors_mamba", "fla_config", "fla_layers"),
    "references/zoology_models",
)
CHECKS = ("flag", "number", "size")
ASIDE = {"_target_", "name", "kwargs", "mixer", "hybrid_configs", "activation"}
"""Words of hydra, of Zoology's ModuleConfig and of fixtures, and an MLP's argument."""


def entries_read() -> Iterator[tuple[str, str, str]]:
    """File, variable and entry, wherever an entry is read under its name."""
    for file in FILES:
        tree = ast.parse((ROOT / "based_jax" / "convert" / f"{file}.py").read_text())
        for node in ast.walk(tree):
            variable: ast.AST | None = None
            name: ast.AST | None = None
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                variable, name = node.value, node.slice
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                is_get = node.func.attr == "get"
                variable, name = (node.func.value, node.args[0]) if is_get else (None, None)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
                variable, name = node.args[:2] if node.func.id in CHECKS else (None, None)
            is_named = isinstance(variable, ast.Name) and isinstance(name, ast.Constant)
            if is_named and variable.id in READERS and isinstance(name.value, str):
                yield file, variable.id, name.value


def test_what_the_converter_reads_is_in_a_table():
    found = set(entries_read())
    assert len(found) > 60
    for file, variable, entry in sorted(found):
        named = {name for path in READERS[variable] for name in tables()[path]} | ASIDE
        if READERS[variable]:
            assert entry in named, f"{file}: {entry} is read, but no table has it"


def configs() -> Iterator[tuple[str, dict[str, Any]]]:
    for directory in sorted(CHECKPOINTS.iterdir()):
        yield directory.name, json.loads((directory / "config.json").read_text())
    for name, changes in CASES.items():
        yield name, BASE | changes


@pytest.mark.parametrize("config", [pytest.param(config, id=name) for name, config in configs()])
def test_what_a_config_has_is_in_a_table(config, caplog):
    model_config(config, {})
    assert "ignored" not in caplog.text


def test_unknown_entries_of_mamba_are_errors():
    with pytest.raises(ValueError, match=r"entry of config\.json = 'rms_nrom': .*did you mean 'rms_norm'\?"):
        model_config({"d_model": 8, "n_layer": 1, "rms_nrom": True}, {})
