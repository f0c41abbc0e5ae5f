"""Import packages that only an extra of this library installs."""

import importlib
from types import ModuleType


def import_optional(module: str, argument: str, value: str, extra: str = "data") -> ModuleType:
    """Import a package of an extra, or raise an ImportError with the install command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package, install = module.partition(".")[0], f"pip install 'based-jax[{extra}]'"
        expected = f"the package {package!r} to be installed; it comes with: {install}"
        raise ImportError(f"{argument} = {value!r}: expected {expected}") from error
