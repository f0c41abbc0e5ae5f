"""The tables of the authors' options: well formed, and true of our names."""

import ast
import dataclasses

import pytest

from based_jax import mixers
from based_jax.convert.authors_config import CLASSES
from based_jax.convert.authors_mamba import ATTENTION, MAMBA, MODEL
from based_jax.convert.fla_config import CLASSES as FLA_CLASSES
from based_jax.convert.fla_config import TRANSFORMERS
from based_jax.convert.fla_layers import ATTENTION as FLA_ATTENTION
from based_jax.convert.options import STATUSES, expect_known, tables
from based_jax.models import MLP, Block, ModelConfig

FLA = {*FLA_CLASSES.values(), FLA_ATTENTION, TRANSFORMERS}
MODELS = {CLASSES["based"], CLASSES["attn"], MODEL, MAMBA, ATTENTION, "zoology.config.ModelConfig", *FLA}
"""Tables whose refusals `expect_known` enforces."""


def test_rows():
    for path in sorted(tables()):
        for name, option in tables()[path].items():
            assert name == option.name
            assert option.status in STATUSES, name
            assert option.status in ("same", "renamed") or option.note, f"{name}: expected a reason"


def test_defaults_of_refused_entries_are_values():
    for path in sorted(MODELS):
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
