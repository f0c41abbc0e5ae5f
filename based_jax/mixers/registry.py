"""Registry of mixers: register a class, make a mixer by name, list mixers and their capabilities.

A mixer of another package gets a name by registering its class,

    @bj.mixers.register("my_mixer")
    class MyMixer(bj.mixers.Mixer): ...

or, without an import, by an entry point in the pyproject.toml of its package:

    [project.entry-points."based_jax.mixers"]
    my_mixer = "my_package.my_module:MyMixer"
"""

import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from based_jax.fields import expect_fields
from based_jax.mixers.contract import MIXERS, Mixer, register
from based_jax.mixers.mixer_options import Option, attribute_docs, option_names
from based_jax.validate import expect, nearest


@dataclasses.dataclass(frozen=True)
class MixerInfo:
    """Capabilities and options of a mixer, and the size of its state."""

    name: str
    summary: str
    causal: bool
    """outputs do not depend on later inputs, by default"""
    stateful: bool
    """can continue from a state"""
    packing: bool
    """honours segment_ids"""
    options: tuple[str, ...]
    """arguments of `make` besides d_model; the function `options` explains them"""

    def state_size(self, d_model: int, length: int, **options: Any) -> int:
        """Return the floats kept per sequence after `length` tokens, by the papers' formulas."""
        return make(self.name, d_model=d_model, **options).state_size(length)


def import_mixer(path: str) -> str:
    """Import a mixer by the path of its module, and return its registered name.

    A class without a name gets its own as one: MinGRU becomes "min_gru".

    Args:
        path: `package.module:Class`, or `package.module` if there is one mixer in it. Modules in the working
            directory count, as with ``python -m``.

    Raises:
        ValueError: no such module or class, several mixers to choose from, or a name that is taken.
        TypeError: the class is not a subclass of `Mixer`.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module_name, _, class_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, OSError, TypeError, ValueError) as error:  # of the module's own code, too
        raise ValueError(f"mixer = {path!r}: cannot import {module_name}: {error}") from error
    own = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Mixer) and _is_inside(value.__module__, module_name)
    ]
    class_name = class_name or (own[0] if len(own) == 1 else "")
    known = ", ".join(own) or "its mixers, of which it has none"
    expected = f"{module_name}:Class, where Class is one of {known}{nearest(class_name, own)}"
    expect(hasattr(module, class_name), "mixer", path, expected)
    mixer = getattr(module, class_name)
    for name, entry in MIXERS.entries.items():
        if entry is mixer:
            return name
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()
    register(name)(mixer)
    return name


def _is_inside(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def names() -> tuple[str, ...]:
    """Return the sorted names of all mixers: built in, registered, or from installed packages."""
    return tuple(sorted(MIXERS.names()))


def class_of(name: str) -> type[Mixer]:
    """Return the class of a mixer.

    Raises:
        ValueError: unknown name, or an installed package whose mixer cannot be imported.
    """
    return MIXERS.find(name)


def make(name: str, *, d_model: int, **options: Any) -> Mixer:
    """Build a mixer; every mixer works with d_model alone.

    Args:
        name: one of `names()`.
        d_model: width of the input and output.
        options: see `options(name)`, or `help` of the mixer's class.

    Raises:
        ValueError: unknown name or option (the message lists the known ones and suggests a similar one), or a
            value of another type or outside the range of its annotation (`based_jax.fields`).
    """
    expect_options(name, options)
    return class_of(name)(d_model=d_model, **options)


def expect_options(name: str, options: Mapping[str, Any]) -> None:
    """Check a mixer's name and each option separately; their combination is checked when it is called.

    Raises:
        ValueError: unknown name or option, or a value of another type or outside the range of its annotation.
    """
    mixer = class_of(name)
    known = _options(mixer)
    for option in options:
        if option not in known:  # looking for the nearest name takes milliseconds
            expected = "one of " + ", ".join(known) + nearest(option, known)
            expect(False, f"option of {name}", option, expected)
    expect_fields(mixer, options)


def info(name: str) -> MixerInfo:
    """Return the capabilities and option names of the mixer `name`; `options(name)` explains the options.

    Raises:
        ValueError: unknown name.
    """
    mixer = class_of(name)
    summary, *_ = (mixer.__doc__ or "").strip().splitlines()
    flags = (bool(mixer.causal), mixer.stateful, mixer.packing)  # a property is True by default
    return MixerInfo(name, summary, *flags, options=_options(mixer))


def options(name: str) -> dict[str, Option]:
    """Return default and meaning of each option that `make` takes besides d_model, inherited ones last.

    Examples:
        >>> import based_jax as bj
        >>> bj.mixers.options("gated_conv")["kernel_size"]
        Option(default=3, meaning='taps of the convolution.')

    Raises:
        ValueError: unknown name.
    """
    mixer = class_of(name)
    meanings, own = attribute_docs(mixer.__doc__ or ""), mixer.__annotations__
    defaults = {field.name: field.default for field in dataclasses.fields(mixer)}
    ordered = sorted(_options(mixer), key=lambda option: option not in own)
    return {option: Option(defaults[option], meanings.get(option, "")) for option in ordered}


def _options(mixer: type[Mixer]) -> tuple[str, ...]:
    return tuple(name for name in option_names(mixer) if name != "d_model")
