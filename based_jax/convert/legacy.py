"""Convert older layouts of the authors' checkpoints.

Blocks used to end with their norms: `transformer.ln_0` came before the first block, and the norm after each
branch had the branch's number. Now each norm comes before its branch, and the last one is `ln_f`.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

_NORM = re.compile(r"transformer\.layers\.(\d+)\.norm([12])\.(\w+)")


def with_norms_before(tensors: Mapping[str, T]) -> dict[str, T]:
    """Rename tensors to current names; current checkpoints are unchanged.

    ln_0 becomes norm1 of layer 0, norm1 of layer i its norm2, norm2 of layer i norm1 of layer i + 1, and the
    last norm2 ln_f (flash-attention's GPTLMHeadModel.load_state_dict).
    """
    if "transformer.ln_0.weight" not in tensors:
        return dict(tensors)
    layers = [int(found[1]) for found in map(_NORM.fullmatch, tensors) if found]
    return {_today(name, max(layers, default=0)): tensor for name, tensor in tensors.items()}


def _today(name: str, last: int) -> str:
    found = _NORM.fullmatch(name)
    if name.startswith("transformer.ln_0."):
        return name.replace("ln_0", "layers.0.norm1")
    if found is None:
        return name
    layer, kind = int(found[1]), found[3]
    if found[2] == "1":
        return f"transformer.layers.{layer}.norm2.{kind}"
    return f"transformer.ln_f.{kind}" if layer == last else f"transformer.layers.{layer + 1}.norm1.{kind}"
