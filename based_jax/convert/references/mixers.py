"""Convert torch mixers, which fixtures and configs describe by their class and its keywords.

`mixers.json` names each class's mixer here, its layout rules, and options that do not depend on keywords. The
table of the class in `options.json` says which option each keyword is; the functions of `based`,
`linear_attention` and `zoology` convert keywords that are not one option of ours each.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.convert import tables
from based_jax.convert.config_values import Config as Meta
from based_jax.convert.layouts import Rules
from based_jax.convert.options import mixer_spec, read
from based_jax.convert.references import based, linear_attention, zoology
from based_jax.files import read_json
from based_jax.models import MixerSpec

CONVERTED: dict[str, Callable[[Meta, dict[str, Any]], Mapping[str, Any]]] = {
    **based.CONVERTED,
    **linear_attention.CONVERTED,
    **zoology.CONVERTED,
}
"""Path of a class -> function of its keywords, and of the options read from them: further options.

An entry `mixer` replaces the mixer."""


class TorchMixer(NamedTuple):
    """How to convert a torch mixer, which is identified by the import path of its class."""

    path: str
    mixer: str
    """our mixer"""
    rules: str
    """its layout rules: code base/module of `tables`"""
    fixed: Mapping[str, Any] = {}
    """options that do not depend on the keywords"""

    def spec(self, meta: Meta) -> MixerSpec:
        """Return our mixer and its options, given the keywords."""
        options = {**read(self.path, meta), **self.fixed}
        if self.path in CONVERTED:
            options |= CONVERTED[self.path](meta, options)
        return mixer_spec(options.pop("mixer", self.mixer), options)

    def rules_for(self, meta: Meta) -> Rules:
        """Return the layout rules of the parameters, given the keywords."""
        return tables.rules_of([self.rules, *zoology.more_rows(self.mixer, meta)])

    def dropped_for(self, meta: Meta) -> tuple[str, ...]:
        """Return the unused torch keys: constants, and aliases of shared tensors."""
        return zoology.dropped(self.mixer, meta)


MIXERS = {
    path: TorchMixer(path, **entry) for path, entry in read_json(Path(__file__).with_suffix(".json")).items()
}
