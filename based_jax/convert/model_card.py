"""Write model cards: a model's README.md, with the front matter that the Hugging Face hub reads.

A card is generated from the architecture and from facts about the training, which config.json keeps in its
entry "card". So a card can be regenerated, with a license or new measurements.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from based_jax.fields import expect_fields
from based_jax.files import read_text, whole_file
from based_jax.markdown import table
from based_jax.models import ModelConfig
from based_jax.validate import expect

CARD = "README.md"
MARK = "<!-- Written by based_jax. Remove this line to keep the page when the model is saved again. -->"

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
_REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


class Measurement(NamedTuple):
    """A measured metric of a model."""

    data: str
    """name of the data, such as swde"""
    metric: str
    """name of the metric, such as contains"""
    value: float
    note: str = ""
    """details: number of examples, padding, dtype, standard error"""


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """Facts about a model in addition to its architecture.

    Attributes:
        name: the title; None for the name of the repository or directory.
        training: how it was trained, label -> text or number, shown in this order.
        measurements: measured metrics.
        license: the hub's identifier of a license, such as "apache-2.0", or None.
        base_model: hub id of the model that this one was trained from.
        datasets: hub ids of the training data.

    Raises:
        ValueError: an entry of another type.
    """

    name: str | None = None
    training: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)
    measurements: Sequence[Measurement] = ()
    license: str | None = None
    base_model: str | None = None
    datasets: Sequence[str] = ()

    def __post_init__(self) -> None:
        expect_fields(ModelCard, vars(self))
        for found in self.measurements:
            expect_fields(Measurement, found._asdict())
        fits = self.license is None or bool(_LICENSE.fullmatch(self.license))
        expect(fits, "license", self.license, "the hub's name of one, such as apache-2.0")
        for field, ids in (("base_model", (self.base_model or "none",)), ("datasets", self.datasets)):
            expect(all(map(_REPOSITORY.fullmatch, ids)), field, ids, "hub ids such as owner/name")

    def to_dict(self) -> dict[str, Any]:
        """Return the entries that are set, for config.json."""
        found = {**dataclasses.asdict(self), "measurements": [m._asdict() for m in self.measurements]}
        return {name: value for name, value in found.items() if value not in (None, {}, [], ())}

    @classmethod
    def from_dict(cls, entries: Any) -> "ModelCard":
        """Invert `to_dict`. ValueError: an unknown entry, or one of another type."""
        try:
            fields = {**entries}
            fields["measurements"] = tuple(Measurement(**found) for found in fields.get("measurements", ()))
            if isinstance(fields.get("datasets"), list):
                fields["datasets"] = tuple(fields["datasets"])
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"card: expected what a card is made of ({error})") from error


def write_card(directory: Path, card: ModelCard, config: ModelConfig, parameters: int) -> None:
    """Write README.md unless there is one that based_jax did not write.

    Args:
        parameters: number of the model's parameters.
    """
    path = directory / CARD
    if not path.exists() or is_ours(read_text(path)):
        with whole_file(path) as file:
            file.write(card_text(card, config, parameters, card.name or directory.resolve().name).encode())


def card_text(card: ModelCard, config: ModelConfig, parameters: int, name: str) -> str:
    """Return the text of README.md for a model of this name or hub id; deterministic."""
    mixers = list(dict.fromkeys(config.mixers[letter].mixer for letter in config.schedule))
    architecture = {
        "parameters": f"{parameters:,}",
        "layers": f"{config.num_layers}: `{config.schedule}`",
        **{f"mixer {letter}": f"`{spec.mixer}`" for letter, spec in config.mixers.items()},
        "width": f"{config.d_model:,}",
        "MLP": config.mlp if config.mlp == "none" else f"{config.mlp}, {config.mlp_hidden:,} wide",
        "vocabulary": f"{config.vocab_size:,} tokens",
        "training context": f"{config.max_length:,} tokens",
    }
    trained = [(_cell(label), _cell(fact)) for label, fact in card.training.items()]
    measured = [(_cell(m.data), _cell(m.metric), f"{m.value:.6g}", _cell(m.note)) for m in card.measurements]
    on_hub = _REPOSITORY.fullmatch(name) and "/" in name
    source, extra = (name, "[hub]") if on_hub else ("DIRECTORY", "")
    sections = [
        _front_matter(card, mixers),
        f"# {_cell(name)}",
        f"A causal language model of {', '.join(mixers)} layers, for based_jax (JAX).",
        "## Architecture",
        _table(("", ""), architecture.items()),
        *(["## Training", _table(("", ""), trained)] if trained else []),
        *(["## Measured", _table(("data", "metric", "value", ""), measured)] if measured else []),
        "## Use",
        f"`pip install 'based-jax{extra}'`, then",
        f'```python\nimport based_jax as bj\n\nmodel, params = bj.load_pretrained("{source}")\n```',
        MARK,
    ]
    return "\n\n".join(sections) + "\n"


def is_ours(text: str) -> bool:
    """Return whether based_jax wrote a README.md, and so may replace it."""
    return MARK in text.splitlines()


def _front_matter(card: ModelCard, mixers: Sequence[str]) -> str:
    """Return the YAML front matter, with strings and lists in JSON, a subset of YAML."""
    entries = {
        "library_name": "based_jax",
        "pipeline_tag": "text-generation",
        "tags": ["jax", "flax", *mixers],
        "license": card.license,
        "base_model": card.base_model,
        "datasets": list(card.datasets),
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in entries.items() if value]
    return "\n".join(["---", *lines, "---"])


def _table(head: Sequence[str], rows: Any) -> str:
    return "\n".join(table(head, rows, words=range(len(head))))


def _cell(value: Any) -> str:
    """Format a number or an untrusted text as a cell of a Markdown table."""
    text = f"{value:,}" if type(value) is int else f"{value:g}" if type(value) is float else str(value)
    line = "".join(char if char.isprintable() else " " for char in text).strip()
    return re.sub(r"([|<`\[\\])", r"\\\1", line) or "-"
