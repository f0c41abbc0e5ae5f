"""Write the model card of a language-model run: how it was trained, and its held-out metrics."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import jax

from based_jax.convert.hub import parse_id
from based_jax.convert.model_card import Measurement, ModelCard
from based_jax.models import ModelConfig
from based_jax.training.lm_config import LMConfig
from based_jax.training.run.directory import versions

_ABSOLUTE = re.compile(r"(?<![\w.-])[/~][^,=\s]*/")
_HUB_DATA = re.compile(r"hf:([\w-][\w.-]*(?:/[\w-][\w.-]*)?)")
_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon and AdamW"}


def run_card(config: LMConfig, model: ModelConfig, step: int, metrics: Mapping[str, float]) -> ModelCard:
    """Describe a run after `step`; absolute paths are cut to their last part, as a card may be published.

    Args:
        metrics: held-out metrics of the final state, named ``eval_...``; empty if there was no evaluation.
    """
    rows = config.batch_size
    optimizer = config.optimizer
    facts = {
        "recipe": config.recipe,
        "preset": config.preset,
        "data": config.data,
        "tokenizer": config.tokenizer,
        "started from": config.init_from,
        "steps": step,
        "batch": f"{rows:,} x {model.max_length:,} tokens",
        "tokens": step * rows * model.max_length,
        "optimizer": f"{_OPTIMIZERS[optimizer.optimizer]}, {optimizer.schedule} schedule, "
        f"weight decay {optimizer.weight_decay:g}",
        "peak learning rate": optimizer.learning_rate,
        "low-rank changes": config.lora and ", ".join([f"rank {config.lora}", *config.also_trained]),
        "dtype": model.dtype,
        "seed": str(config.seed),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "software": ", ".join(f"{name} {version}" for name, version in versions("jax", "flax").items()),
    }
    shown = {name: _public(fact) for name, fact in facts.items() if fact is not None}
    source = f"held out of {shown['data']}"
    return ModelCard(
        name=config.workdir.resolve().name,
        training=shown,
        measurements=tuple(
            Measurement(source, name.removeprefix("eval_"), value)
            for name, value in metrics.items()
            if math.isfinite(value)
        ),
        base_model=_hub_id(config.init_from),
        datasets=tuple(dict.fromkeys(_HUB_DATA.findall(config.data))),
    )


def _public(fact: str | int | float) -> str | int | float:
    """Format a fact for the card: short, and without directories of this machine."""
    return _ABSOLUTE.sub("", fact)[:500] if isinstance(fact, str) else fact


def _hub_id(source: str | None) -> str | None:
    """Return the hub repository that a run started from; None for a directory, or from scratch."""
    if source is None or "/" not in source or Path(source).exists():
        return None
    try:
        return parse_id(source)[0]
    except ValueError:
        return None
