"""How large each scale of the study is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """Sizes of all parts."""

    about: str
    """in a sentence"""
    length: int
    """tokens N of the drawn inputs"""
    width: int
    """of their queries and keys, a multiple of 4"""
    draws: int
    """of each kind of input, over which means are taken"""
    terms: Sequence[int]
    """numbers k of segments that the curves have"""
    steps: int
    """of training"""
    batch_size: int
    window: int
    """tokens of a training sequence, and of the texts that the trained heads are looked at with"""
    d_model: int
    """of the language model, which has two layers of two heads"""
    texts: int
    """held-out texts"""
    window_terms: Sequence[int]
    """numbers k of segments of the texts"""
    held_out_bytes: int
    """from which the texts are taken, and on which the model is evaluated"""


SETTINGS: Mapping[str, Setting] = {
    "smoke": Setting(
        about="Not a result, a check that everything runs",
        length=96, width=16, draws=1, terms=(1, 8, 96), steps=2, batch_size=2, window=48, d_model=16, texts=2,
        window_terms=(4, 48), held_out_bytes=2048,
    ),
    "cpu": Setting(
        about="Drawn inputs of 512 tokens and width 64; a model of two layers and two heads",
        length=512, width=64, draws=4, terms=(1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512), steps=1500,
        batch_size=16, window=128, d_model=64, texts=8,
        window_terms=(1, 2, 4, 8, 16, 32, 64, 128), held_out_bytes=65536,
    ),
}  # fmt: skip
