"""Import what is not always needed: public names on first use (PEP 562), and packages of an extra."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def on_first_use(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        names: module of the package -> the names that it defines; "" -> modules that are names themselves.
    """
    modules = {name: module for module, defined in names.items() for name in defined}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{modules[name] or name}")
        value = getattr(module, name) if modules[name] else module
        setattr(sys.modules[package], name, value)
        return value

    def public() -> list[str]:
        defined = vars(sys.modules[package])
        return sorted(defined.get("__all__", {*defined, *modules}))

    return find, public


def import_optional(module: str, argument: str, value: str, extra: str = "data") -> ModuleType:
    """Import a package of an extra, or raise an ImportError with the install command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package, install = module.partition(".")[0], f"pip install 'based-jax[{extra}]'"
        expected = f"the package {package!r} to be installed; it comes with: {install}"
        raise ImportError(f"{argument} = {value!r}: expected {expected}") from error
