"""Map rows of published tables to presets and to the runs whose evaluations fill them."""

from typing import Any

from based_jax.models import presets
from based_jax.published.tables import Row, Table

RELEASED = (
    "attn-1b",
    "attn-360m",
    "based-1b",
    "based-1b-50b",
    "based-360m",
    "mamba-1b",
    "mamba-1b-50b",
    "mamba-360m",
)
"""The authors' checkpoints on the hub, under hazyresearch/."""

_BASED = {
    ("Transformer++", "360m"): "attn-360m",
    ("Transformer++", "1.33b"): "attn-1b",
    ("Based", "363m"): "based-360m",
    ("Based", "1.35b"): "based-1b",
    ("Mamba", "358m"): "mamba-360m",
    ("Mamba", "1.32b"): "mamba-1b",
    ("H3", "362m"): "h3-360m",
    ("GLA", "362m"): "gla-360m",
    ("RWKV v5", "362m"): "rwkv5-360m",
}
_SUPERGLUE = {"Transformer++": "attn-360m", "Based": "based-360m", "Mamba": "mamba-360m"}
_DNA = {"Transformer++": "hg38-attention-46m", "Based": "hg38-based-49m", "Mamba": "hg38-mamba-46m"}
_ZOOLOGY = {
    "Attention": "attention",
    "BaseConv": "base-conv",
    "BaseConv + full attention": "base-conv-full",
    **{f"BaseConv + {name} selection": f"base-conv-{name}" for name in ("learned", "programmatic", "random")},
    "H3": "h3",
    "Hyena": "hyena",
    "Hyena, w = 14": "hyena",
    **{f"Hyena + sliding window {width}": f"hyena-window{width}" for width in (64, 256)},
    "Long Conv": "long-conv",
    "RetNet (128)": "retnet",
    "RWKV": "rwkv4",
}

_ABLATIONS: dict[tuple[Any, ...], str] = {
    ("Taylor", 16, 64, "yes", "yes"): "based-360m-decay",
    ("Performer", 16, 64, "yes", "yes"): "based-360m-performer16",
    ("CosFormer", 16, 64, "yes", "yes"): "based-360m-cosformer16",
    ("CosFormer", 64, 64, "yes", "yes"): "based-360m-cosformer64",
    ("Taylor", 32, 64, "yes", "yes"): "based-360m-taylor32",
    ("Taylor", 24, 64, "yes", "yes"): "based-360m-taylor24",
    ("Taylor", 8, 64, "yes", "yes"): "based-360m-taylor8",
    ("Taylor", 16, 64, "yes", "no"): "based-360m",
    ("Taylor", 16, 0, "yes", "yes"): "based-360m-no-window",
    ("Taylor", 16, 64, "no", "yes"): "based-360m-no-conv",
    ("Taylor", 24, 0, "no", "yes"): "based-360m-linear24",
    ("Taylor", 16, 128, "yes", "yes"): "based-360m-window128",
}
"""Presets by feature map, width, window, convolutions and decay."""


def preset_of(table: Table, row: Row) -> str | None:
    """Return the preset with the row's shape; None if there is none."""
    model = str(row.get("model", ""))
    if table.name.startswith("zoology_table"):
        size: Any = row.get("parameters")
        size = 1000 * size if table.name == "zoology_table_6" else size  # printed in billions
        name = f"zoology-{_ZOOLOGY.get(model)}-{size:.0f}m" if size else None
    elif table.name == "based_table_6":
        name = _ABLATIONS.get(tuple(row.get(key) for key in table.key))
    elif table.name in ("based_table_4", "based_table_5"):
        name = _DNA.get(model)
    elif table.name == "based_table_3":
        name = _SUPERGLUE.get(model)
    else:
        name = row.get("checkpoint") or _BASED.get((model, _size(row)[0]))
    return str(name) if name in presets.names() else None


def run_of(table: Table, row: Row) -> str | None:
    """Return the row's released checkpoint, or the name of the preset of our own run."""
    name = preset_of(table, row)
    if name is None or name.startswith(("zoology", "hg38")):
        return name
    name += {"10b": "", "50b": "-50b"}.get(_size(row)[1], " has no such checkpoint")
    return name if name in RELEASED else None


def _size(row: Row) -> tuple[str, str]:
    """Return parameters and training tokens of "363m/10b"; tokens default to 10b."""
    parameters, _, tokens = str(row.get("size", "")).partition("/")
    return parameters, tokens or "10b"
