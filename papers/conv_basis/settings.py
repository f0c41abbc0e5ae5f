"""Define how large each scale of the study is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """Sizes of all parts."""

    about: str  # description, one sentence
    length: int  # tokens N of the drawn inputs
    width: int  # of their queries and keys, a multiple of 4
    draws: int  # draws per kind of input, averaged
    terms: Sequence[int]  # numbers k of segments of the curves
    steps: int  # of training
    batch_size: int
    window: int  # tokens of a training sequence, and of the texts for the trained heads
    d_model: int  # of the language model, which has two layers of two heads
    texts: int  # held-out texts whose heads are examined
    replaced_texts: int  # held-out texts that the model reads with other attention
    window_terms: Sequence[int]  # numbers k of segments of the texts
    held_out_bytes: int  # held-out bytes: source of the texts, and evaluation data


_DRAWN: Mapping[str, Mapping[str, Any]] = {
    "smoke": {"length": 96, "width": 16, "draws": 1, "terms": (1, 8, 96)},
    "cpu": {"length": 512, "width": 64, "draws": 4, "terms": (*(2**n for n in range(9)), 384, 512)},
}
_TRAINED: Mapping[str, Mapping[str, Any]] = {
    "smoke": {
        "steps": 2,
        "batch_size": 2,
        "window": 48,
        "d_model": 16,
        "texts": 2,
        "replaced_texts": 2,
        "held_out_bytes": 2048,
    },
    "cpu": {
        "steps": 1500,
        "batch_size": 16,
        "window": 128,
        "d_model": 64,
        "texts": 8,
        "replaced_texts": 32,
        "held_out_bytes": 65536,
    },
}
_SMOKE = "Not a result, a check that everything runs"
_CPU = "Drawn inputs of 512 tokens and width 64; a model of two layers and two heads"

SETTINGS: Mapping[str, Setting] = {
    "smoke": Setting(_SMOKE, window_terms=(4, 48), **_DRAWN["smoke"], **_TRAINED["smoke"]),
    "cpu": Setting(_CPU, window_terms=[2**n for n in range(8)], **_DRAWN["cpu"], **_TRAINED["cpu"]),
}
