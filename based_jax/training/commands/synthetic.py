"""Train on a synthetic task: ``based-jax train synthetic --task forgetting --mixer based --epochs 8``.

One compiled program (`based_jax.training.mqar`) trains all learning rates and seeds, with the recipe of
Zoology's code. A task on embeddings (`stacked`) trains Zoology's continuous model: vectors in, and out of the
same layers a vector that is scored against the table of values, which is fixed.
"""

from collections.abc import Sequence
from typing import Any

import jax

from based_jax import command, mixers
from based_jax.files import write_json
from based_jax.generate import states
from based_jax.models import LanguageModel, ModelConfig, param_count
from based_jax.training.mqar.config import SyntheticConfig
from based_jax.training.mqar.sweep import Outcome, sweep
from based_jax.training.recipes import with_recipe
from based_jax.training.run import directory
from based_jax.training.run.checkpoints import start_logging

PROG = "based-jax train synthetic"
_MAY_CHANGE = {"workdir", "log_every", "recipe"}  # on resuming


def train_synthetic(config: SyntheticConfig) -> Outcome:
    """Run `config` to its end, or until a signal."""
    facts = facts_of(config)
    with directory.sole_run(config.workdir, resume=True):
        _prepare_workdir(config)
        return sweep(config, facts)


def facts_of(config: SyntheticConfig) -> dict[str, Any]:
    """Return what is known before training: the entries that all records of a run share."""
    architecture = config.architecture
    stateful = all(mixers.info(spec.mixer).stateful for spec in architecture.mixers.values())
    return {
        "task": config.task_and_settings[0],
        "device": jax.devices()[0].device_kind,
        "mixer": config.layers or config.mixer,
        "d_model": config.d_model,
        "parameters": param_count(architecture),
        "state_size": LanguageModel(architecture).state_size(config.longest) if stateful else None,
        "state_bytes": state_bytes(architecture, config.longest) if stateful else None,
    }


def state_bytes(architecture: ModelConfig, length: int) -> int | None:
    """Return the bytes of `init_state` for one sequence of `length` tokens, with caches and counters.

    None if a mixer has no state with its options, such as `input_conv` with the filter "autocorrelation".
    """
    try:
        return states.state_bytes(LanguageModel(architecture), length)
    except ValueError:
        return None


def _prepare_workdir(config: SyntheticConfig) -> None:
    """Write config.json, or check the settings against it when a run is resumed."""
    path = config.workdir / "config.json"
    if path.exists() or (config.workdir / "results.jsonl").exists():
        before = directory.read_config(path, ["train"])["train"]
        kept = f"as in the run that {config.workdir} holds, or another workdir"
        directory.expect_same_settings(config.settings, before, _MAY_CHANGE, kept)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    packages = directory.versions("jax", "flax", "optax", "orbax-checkpoint")
    write_json(path, {"model": config.architecture.to_dict(), "train": config.settings, "versions": packages})


def _sentence(record: dict[str, Any]) -> str:
    run = f"learning_rate {record['learning_rate']:g}  seed {record['seed']}"
    if record["status"] == "failed":
        return f"{run}  failed at step {record['steps']}"
    slices = record["slices"]
    parts = [f"{key} {value}: {share:.4f}" for key in slices for value, share in slices[key].items()]
    return f"{run}  accuracy {record['accuracy']:.4f}  epochs {record['epochs']:g}  ({', '.join(parts)})"


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command `prog`; the exit status is 128 + n after signal n."""
    start_logging()
    config = command.parse(SyntheticConfig, with_recipe(argv, SyntheticConfig), prog=prog)
    outcome = train_synthetic(config)
    for record in outcome.records:
        print(_sentence(record))
    ended = [record["accuracy"] for record in outcome.records if record["status"] != "failed"]
    best = f"best accuracy {max(ended)!r}" if ended else "no run has an accuracy"
    print(f"{best}; results in {config.workdir / 'results.jsonl'}")
    return 0 if outcome.stopped_by is None else 128 + outcome.stopped_by
