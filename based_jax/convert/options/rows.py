"""Shorthands for the rows of tables, and rows that many mixers share."""

from based_jax.convert.options.option import Option


def same(name: str, default: str = "", note: str = "") -> Option:
    """Return the row of an argument that is our option of the same name."""
    return Option(name, default, name, "same", note)


def renamed(name: str, default: str, ours: str, note: str = "") -> Option:
    """Return the row of an argument that corresponds to our option or options `ours`."""
    return Option(name, default, ours, "renamed", note)


def ignored(name: str, default: str, note: str) -> Option:
    """Return the row of an argument that does not affect outputs."""
    return Option(name, default, "", "ignored", note)


def refused(name: str, default: str, note: str) -> Option:
    """Return the row of an argument of which only the default is accepted."""
    return Option(name, default, "", "refused", note)


D_MODEL = same("d_model")
INITIAL = "initial values only, replaced by the weights"
IN_TRAINING = "acts only in training, where it is not supported; evaluations do not depend on it"
SWALLOWED = "accepted by **kwargs, never read"
FAILS = "other values fail in their code"

LAYER = ignored("layer_idx", "None", "layer index of a decoding cache")
TENSORS = (
    ignored("device", "None", "placement of the tensors"),
    ignored("dtype", "None", "of the tensors"),
)


def dropout(default: str = "0.0") -> Option:
    """Return the row of a dropout rate, which acts only in training."""
    return ignored("dropout", default, IN_TRAINING)


def length(default: str = "") -> Option:
    """Return the row of a maximum length that is only checked."""
    return ignored("l_max", default, "does not affect outputs")


KEYWORDS = tuple(ignored(name, "", SWALLOWED) for name in ("l_max", "layer_idx"))
"""Arguments in Zoology's configs that classes accept as **kwargs and never read."""
