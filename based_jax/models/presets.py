"""Named models: sizes and layer schedules of the papers' language models, and small byte-level ones.

`presets.json` has the fields of `ModelConfig` that differ from its defaults, or from those of the preset in
`like`; that one's mixers stay if the schedule has their letters. "CLSCC*2 C" is the schedule CLSCCCLSCCC.

Based: Tables 7 to 13. Zoology: its Pile suite, under "zoology-". docs/mixers.md compares the printed
parameter counts with ours and explains the differences. Windows of Based are the paper's 64 keys at both
sizes. Table 7 prints 16 at 1.4b, and the released configs differ again; no parameter depends on the window,
and `load_pretrained` reads the checkpoint's.

Based's Table 4 lists three models of the human genome (HG38) with their sizes only. The shapes under "hg38-"
are ours: they reach the printed sizes with the conventions of the other tables. Based has Table 7's layer
order, 16 heads and MLP width of 2; attention has 64 channels per head and Table 8's MLP width of 4; Mamba has
many narrow layers, as in Table 9. Zoology's Table 6 lists two models of 1.4b, also without shapes: ours have
2,048 channels, and as many layers as the size requires.

Zoology, section 5 and Table 2: three layers of a BaseConv model attend for selected tokens, k = 256 of 2,048;
Table 4: three layers of Hyena are sliding windows. Based, Table 6: other feature maps, widths and windows, or
models without one of the three kinds of layers, all with the decay of appendix C. The papers do not print the
positions of these layers, their number of heads or the replacement of omitted layers: here they are evenly
spaced, have 12 heads, and the remaining kinds alternate.
"""

import functools
from pathlib import Path
from typing import Any

from based_jax.files import read_json
from based_jax.models.config import ModelConfig
from based_jax.validate import expect_choice

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
