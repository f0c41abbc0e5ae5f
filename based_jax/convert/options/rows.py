"""Short ways to write a table's rows, and rows that many mixers share."""

from based_jax.convert.options.option import Option


def same(name: str, default: str = "", note: str = "") -> Option:
    """An argument that is an option of ours by the same name."""
    return Option(name, default, name, "same", note)


def renamed(name: str, default: str, ours: str, note: str = "") -> Option:
    """An argument whose meaning one or more of our options have."""
    return Option(name, default, ours, "renamed", note)


def ignored(name: str, default: str, note: str) -> Option:
    """An argument that no output depends on, there or here."""
    return Option(name, default, "", "ignored", note)


def refused(name: str, default: str, note: str) -> Option:
    """An argument of which only the default is accepted."""
    return Option(name, default, "", "refused", note)


D_MODEL = same("d_model")
INITIAL = "initial values only, which the weights replace"
IN_TRAINING = "acts in training alone, where it is not here; no evaluation depends on it"
SWALLOWED = "**kwargs takes it, nothing reads it"
FAILS = "other values fail there"

LAYER = ignored("layer_idx", "None", "the number of the layer, for a decoding cache")
TENSORS = (
    ignored("device", "None", "where the tensors are kept"),
    ignored("dtype", "None", "of the tensors"),
)


def dropout(default: str = "0.0") -> Option:
    """Dropout that acts in training only."""
    return ignored("dropout", default, IN_TRAINING)


def length(default: str = "") -> Option:
    """The longest text, where it only checks lengths."""
    return ignored("l_max", default, "no output depends on it")


KEYWORDS = tuple(ignored(name, "", SWALLOWED) for name in ("l_max", "layer_idx"))
"""What Zoology's configs give to classes that swallow it."""
