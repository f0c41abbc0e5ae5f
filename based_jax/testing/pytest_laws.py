"""A pytest plugin that runs the laws of a layer, each as a test; files run too if they are named.

    pytest -p based_jax.testing.pytest_laws --recurrent-laws my_package.layers:adapter

It is no entry point: that would import based_jax, which sets a flag of XLA (`based_jax.broken_fusions`), in
the tests of every package of an environment.
"""

import importlib
import sys
from typing import Any

import pytest

from based_jax.testing.layers import LAWS, Layer, check_layer


def pytest_addoption(parser: pytest.Parser) -> None:
    meaning = "check a based_jax.testing.Layer, or what a function without arguments returns"
    parser.addoption("--recurrent-laws", action="append", default=[], metavar="MODULE:NAME", help=meaning)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--recurrent-laws") and config.args_source != pytest.Config.ArgsSource.ARGS:
        config.args = []


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[Any]) -> None:
    for name in config.getoption("--recurrent-laws") or ():
        layer = load(name, str(config.invocation_params.dir))
        items += [_LawItem.from_parent(session, name=f"{name}[{law}]", layer=layer, law=law) for law in LAWS]


def load(name: str, directory: str) -> Layer:
    """Return the layer MODULE:NAME, whose module may be in the directory; UsageError if there is none."""
    module, _, attribute = name.partition(":")
    sys.path[:0] = [directory] if directory not in sys.path else []
    try:
        layer = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(f"--recurrent-laws = {name!r}: expected MODULE:NAME ({error})") from error
    layer = layer if isinstance(layer, Layer) or not callable(layer) else layer()
    if not isinstance(layer, Layer):
        raise pytest.UsageError(f"--recurrent-laws = {name!r}: expected a Layer, not {type(layer).__name__}")
    return layer


class _LawItem(pytest.Item):
    def __init__(self, *, layer: Layer, law: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.layer, self.law = layer, law

    def runtest(self) -> None:
        report = check_layer(self.layer, [self.law])
        if report.of("not checked"):
            pytest.skip(report.outcomes[0].detail)
        report.raise_if_broken()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if excinfo.errisinstance(AssertionError) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, f"recurrent laws: {self.name}"
