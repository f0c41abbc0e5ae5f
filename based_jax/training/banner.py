"""Summaries of a run on text: those printed at its start and its end, and its model card."""

import math
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from flax.traverse_util import flatten_dict
from rich.console import Console

from based_jax.convert.hub import is_hub_id, parse_id
from based_jax.convert.model_card import Measurement, ModelCard
from based_jax.data.documents import count
from based_jax.data.packed import Mixture, TokenStream
from based_jax.models import LanguageModel, ModelConfig, param_count
from based_jax.training.lm_config import LMConfig
from based_jax.training.low_rank import CHANGES, LowRank
from based_jax.training.optimizer import kind_of
from based_jax.training.run.directory import versions
from based_jax.training.run.progress import short
from based_jax.training.step import Programs
from based_jax.training.text_run import TextRunConfig

_LABEL = 12  # width of the column of labels

_ABSOLUTE = re.compile(r"(?<![\w.-])[/~][^,=\s]*/")
_HUB_DATA = re.compile(r"hf:([\w-][\w.-]*(?:/[\w-][\w.-]*)?)")
_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon and AdamW"}


def describe_run(
    config: TextRunConfig,
    name: str,
    model: ModelConfig,
    training: TokenStream | Mixture,
    held_out: TokenStream | Mixture,
    mesh: Mapping[str, int] | None,
    weights: str | None = None,
) -> dict[str, str]:
    """Describe tokens, steps, the model of this name, the origin of its weights, device and directory."""
    per_step = config.batch_size * model.max_length
    consumed = config.steps * per_step
    if isinstance(training, Mixture):
        parts = zip(training.names, training.parts, training.shares, strict=True)
        epochs = ", ".join(f"{consumed * share / len(part):.3g} of {name}" for name, part, share in parts)
    else:
        epochs = f"{consumed / len(training):.3g}"
    held = f"{len(held_out):,} held out ({held_out.num_bytes:,} bytes)"
    device = jax.devices()[0]
    spread = " ".join(f"{axis}={size}" for axis, size in mesh.items()) if mesh else "no mesh"
    rows = {
        "tokens": f"{len(training):,} to train on, {held}; vocabulary {model.vocab_size:,}",
        "steps": f"{config.steps:,} of {config.batch_size} x {model.max_length} tokens: "
        f"{short(consumed)} tokens, {epochs} epochs",
        "model": f"{name}: {param_count(model):,} parameters in {count(model.num_layers, 'layer')}",
    }
    if weights is not None:
        rows["weights"] = weights
    rows["device"] = f"{jax.device_count()} x {device.device_kind}, {model.dtype}, {spread}"
    rows["directory"] = str(config.workdir)
    return rows


def describe_trained(model: LanguageModel | LowRank, programs: Programs) -> dict[str, str]:
    """Describe what is trained and what is frozen, by kind, with numbers of parameters."""
    params = programs.abstract_state.params
    trained, frozen, maps = Counter[str](), Counter[str](), ""
    if isinstance(model, LowRank):
        names = ", ".join(sorted({path.split("/")[-2] for path in params[CHANGES]}))
        trained["low-rank factors"] = sum(leaf.size for leaf in jax.tree.leaves(params[CHANGES]))
        maps = f"; rank {model.rank} of {names}"
    leaves: Any = flatten_dict(params["params"])
    for path, leaf in leaves.items():
        is_fixed = path == ("embedding",) and model.config.freeze_embedding
        is_fixed |= isinstance(model, LowRank) and kind_of(path) not in model.also
        (frozen if is_fixed else trained)[kind_of(path)] += leaf.size
    total = short(sum(leaf.size for leaf in leaves.values()))
    share = f"{short(trained.total())} of {total}" if frozen else f"all {total}"
    rows = {"trains": f"{share} parameters: {_sizes(trained)}{maps}"}
    return {**rows, "frozen": _sizes(frozen)} if frozen else rows


def describe_end(config: TextRunConfig, metrics: Mapping[str, float]) -> dict[str, str]:
    """Describe the last evaluation, if any, where the model is saved, and the commands that use it."""
    directory = shlex.quote(str(config.workdir))
    rows = {}
    if metrics:
        bits = f"{bits:.4f} bits per byte, " if (bits := metrics.get("eval_bits_per_byte")) else ""
        loss, perplexity = metrics["eval_loss"], metrics["eval_perplexity"]
        rows["held out"] = f"loss {loss:.4f} nats per token, {bits}perplexity {perplexity:.4f}"
    rows["model"] = str(config.workdir / "model")
    prompt = "ACGT" if config.tokenizer == "dna" else "def " if config.data == "stdlib" else "The "
    rows["generate"] = f'based-jax generate --checkpoint {directory} --prompt "{prompt}"'
    rows["serve"] = f"based-jax serve --checkpoint {directory}"
    return rows


def lm_card(config: LMConfig, model: ModelConfig, step: int, metrics: Mapping[str, float]) -> ModelCard:
    """Describe a run of `train lm` after `step`; see `run_card`."""
    changes = config.lora and ", ".join([f"rank {config.lora}", *config.also_trained])
    facts = {"recipe": config.recipe, "preset": config.preset, "low-rank changes": changes}
    decays = config.lora is None or bool(config.also_trained)
    return run_card(config, model, step, metrics, facts, config.init_from, decays=decays)


def run_card(
    config: TextRunConfig,
    model: ModelConfig,
    step: int,
    metrics: Mapping[str, float],
    own_facts: Mapping[str, Any],
    started_from: str | None,
    *,
    decays: bool,
) -> ModelCard:
    """Describe a run after `step`; absolute paths are cut to their last part, as a card may be published.

    Args:
        metrics: held-out metrics of the final state, named ``eval_...``; empty if there was no evaluation.
        own_facts: facts that only this command has; None is left out.
        started_from: source of the weights; None if they were drawn at random.
        decays: whether the weight decay has an effect.
    """
    rows = config.batch_size
    optimizer = config.optimizer
    facts = {
        **own_facts,
        "data": config.data,
        "tokenizer": config.tokenizer,
        "started from": started_from,
        "steps": step,
        "batch": f"{rows:,} x {model.max_length:,} tokens",
        "tokens": step * rows * model.max_length,
        "optimizer": f"{_OPTIMIZERS[optimizer.optimizer]}, {optimizer.schedule} schedule"
        + f", weight decay {optimizer.weight_decay:g}" * decays,
        "peak learning rate": optimizer.learning_rate,
        "dtype": model.dtype,
        "seed": str(config.seed),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "software": ", ".join(f"{name} {version}" for name, version in versions("jax", "flax").items()),
    }
    known = {name: fact for name, fact in facts.items() if fact is not None}
    shown = {name: _ABSOLUTE.sub("", f)[:500] if isinstance(f, str) else f for name, f in known.items()}
    source = f"held out of {shown['data']}"
    return ModelCard(
        name=config.workdir.resolve().name,
        training=shown,
        measurements=tuple(
            Measurement(source, name.removeprefix("eval_"), value)
            for name, value in metrics.items()
            if math.isfinite(value)
        ),
        base_model=_hub_id(started_from),
        datasets=tuple(dict.fromkeys(_HUB_DATA.findall(config.data))),
    )


def _hub_id(source: str | None) -> str | None:
    """Return the hub repository that a run started from; None for a directory, or from scratch."""
    if source is None or "/" not in source or not is_hub_id(source) or Path(source).exists():
        return None
    return parse_id(source)[0]


def show(rows: Mapping[str, str], console: Console) -> None:
    """Print labelled rows, wrapped at the console's width; commands stay on one line."""
    for label, text in rows.items():
        width = max(console.width, 40) - _LABEL
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        for index, line in enumerate([text] if text.startswith("based-jax ") else lines):
            shown = f"{'' if index else label:<{_LABEL}}{line}"
            console.print(shown, highlight=False, markup=False, soft_wrap=True)


def _sizes(sizes: Counter[str]) -> str:
    return ", ".join(f"{kind} {short(size)}" for kind, size in sizes.most_common())
