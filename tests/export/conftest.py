"""Exported models shared by the tests: tracing and compiling them takes most of their time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import pytest

import based_jax as bj
from based_jax.export import Exported, Plan, export_model, runner
from based_jax.models.config import MixerSpec
from tests.generate.tiny import LENGTH, MIXERS, Tiny, make_tiny

PLAN = Plan(max_length=LENGTH, prefill_chunk=8, decode_chunk=5)
MORE = {**MIXERS, "M": MixerSpec("mamba")}


@pytest.fixture(scope="session", autouse=True)
def records(tmp_path_factory) -> Iterator[Path]:
    """Where exports are recorded: not in the user's cache directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield runner._records()


class Case(NamedTuple):
    """A model, the directory that it was exported to, and what was loaded from there."""

    tiny: Tiny
    plan: Plan
    directory: Path
    exported: Exported


@pytest.fixture(scope="session")
def mixed(tmp_path_factory) -> Case:
    """Window and state space in one, on both platforms, for any batch."""
    return make_case("SM", PLAN, tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="session")
def plain(tmp_path_factory) -> Case:
    """As above, of one kind of layer: to look at and to damage."""
    return make_case("A", PLAN, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Case:
    """A model that compiles fast: for two rows. It is exported where a caller has declared a GPU."""
    plan = Plan(("cpu",), batch_size=2, prefill_chunk=4, decode_chunk=3)
    with bj.lowering_for("cuda", device_kind="NVIDIA H100"):
        return make_case("C", plan, tmp_path_factory.mktemp("small"))


def make_case(schedule: str, plan: Plan, directory: Path) -> Case:
    tiny = make_tiny(schedule, mixers={letter: MORE[letter] for letter in schedule})
    unchecked(export_model, directory, tiny.model, tiny.params, plan)
    return Case(tiny, plan, directory, Exported.load(directory))


def unchecked(function: Any, *arguments: Any) -> Any:
    """Call it while signatures are not checked: the checks know nothing of symbolic sizes."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        return function(*arguments)
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
