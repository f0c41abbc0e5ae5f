"""Named models: sizes and layer schedules of the papers' language models, and small byte-level ones.

`presets.json` has the fields of `ModelConfig` that differ from its defaults, or from those of the preset in
`like`; that one's mixers stay if the schedule has their letters. "CLSCC*2 C" is the schedule CLSCCCLSCCC.

Based: Tables 6 to 13. Zoology: Tables 1, 2, 4 and 6, under "zoology-". docs/mixers.md compares the printed
parameter counts with ours and explains the differences. Where the papers print only sizes (Based's models of
DNA, "hg38-", and Zoology's of 1.4b) shapes are ours; where they do not print the positions of some layers
(Zoology, Tables 2 and 4) or their number of heads (Based, Table 6), layers are evenly spaced and have 12
heads, and the remaining kinds alternate in place of omitted ones. Windows of Based are the paper's 64 keys at
both sizes; Table 7 prints 16 at 1.4b, and no parameter depends on it.
"""

import functools
from pathlib import Path
from typing import Any

from based_jax.files import find_file, read_json, read_object
from based_jax.models.config import ModelConfig
from based_jax.validate import expect, expect_choice, nearest

BYTE_VOCAB = 257
"""Tokens of the byte tokenizer: 256 bytes and the separator of documents."""


@functools.cache
def _presets() -> dict[str, ModelConfig]:
    """Make all presets, on first use because checking their options is slow."""
    found: dict[str, dict[str, Any]] = {}
    for name, given in read_json(Path(__file__).with_suffix(".json")).items():
        base = found.get(given.pop("like", ""), {})
        found[name] = {**base, **given, "mixers": {**base.get("mixers", {}), **given.get("mixers", {})}}
    return {name: _config(fields) for name, fields in found.items()}


def _config(fields: dict[str, Any]) -> ModelConfig:
    words = (word.partition("*") for word in fields["schedule"].split())
    schedule = "".join(part * int(times or 1) for part, _, times in words)
    mixers = {letter: spec for letter, spec in fields["mixers"].items() if letter in schedule}
    return ModelConfig.from_dict({**fields, "schedule": schedule, "mixers": mixers})


def names() -> tuple[str, ...]:
    """Return the sorted names of all presets."""
    return tuple(sorted(_presets()))


def get(name: str) -> ModelConfig:
    """Return the preset called `name`.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    expect_choice("preset", name, names())
    return _presets()[name]


def find(preset: str) -> ModelConfig:
    """Return a preset by its name, or the config in a JSON file.

    Raises:
        ValueError: neither; a file that is not a model's config.
    """
    if preset in names():
        return get(preset)
    path = find_file(preset)
    expect(
        path.is_file(),
        "preset",
        preset,
        f"a JSON file or one of {', '.join(names())}{nearest(preset, names())}",
    )
    fields = read_object(path)
    try:
        return ModelConfig.from_dict(fields)
    except ValueError as error:
        raise ValueError(f"preset {path}: {error}") from error
