"""Classify sequences: ``based-jax train classify --checkpoint runs/dna --data DIR --workdir runs/enhancers``.

Fine-tunes a language model, or trains one from scratch, as Based does on GenomicBenchmarks (Table 5). The run
directory is laid out as by `train lm`; ``model/`` holds the classifier (`based_jax.convert.classifier`) and
results.json the accuracy on the test split.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import linen as nn

from based_jax.convert import load_pretrained
from based_jax.convert.classifier import load_classifier, save_classifier
from based_jax.convert.pretrained import find_directory, find_tokenizer
from based_jax.data import Tokenizer, load_tokenizer
from based_jax.data.labelled import LabelledRows, load_labelled
from based_jax.data.pipeline import shuffled_batches
from based_jax.files import write_json
from based_jax.mixers.selection_heads import LOSSES
from based_jax.models import ModelConfig, presets
from based_jax.models.classifier import POOLINGS, SequenceClassifier
from based_jax.training.initial_weights import with_weights
from based_jax.training.lm_config import find_dtype
from based_jax.training.loop import LoopConfig, Outcome, fit
from based_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from based_jax.training.run.checkpoints import naming_the_last_checkpoint, start_logging
from based_jax.training.run.directory import has_checkpoints, parse_run, prepare_run, sole_run
from based_jax.training.run.metrics import read_metrics
from based_jax.training.step import Batch, TrainState, build_programs, counted
from based_jax.typing import Array, Params
from based_jax.validate import UINT32_MAX, expect, expect_choice, expect_range, expect_ranges

PROG = "based-jax train classify"

_MAY_CHANGE = {"workdir", "log_every", "checkpoint_every", "keep", "resume"}


@dataclasses.dataclass(frozen=True)
class ClassifyConfig:
    """Train a sequence classifier on top of a language model's layers."""

    workdir: Path
    """run directory: config, metrics, checkpoints, final classifier, results"""
    data: str
    """directory with train/CLASS/*.txt and test/CLASS/*.txt (GenomicBenchmarks), or with train.csv and
    test.csv (sequence, label)"""
    checkpoint: str | None = None
    """weights to start from: a pretrained directory, a finished run, or a hub id"""
    preset: str | None = None
    """train from scratch instead: a preset such as hg38-based-49m, or a JSON file of one"""
    tokenizer: str | None = None
    """dna, byte, or a tokenizers JSON file; default: the checkpoint's, else dna"""
    length: int | None = None
    """tokens per sequence; longer ones are truncated; default: the longest sequence"""
    pooling: str = "mean"
    """mean (over the tokens) or last (token)"""
    epochs: int = 10
    """passes over the training split"""
    steps: int | None = None
    """optimizer steps, instead of --epochs"""
    batch_size: int = 128
    """sequences per step"""
    validation: float = 0.1
    """share of the training split to hold out for choosing the best epoch; 0: use the final state"""
    seed: int = 1111
    """random seed of the head's initialisation, the data order and the validation split"""
    optimizer: Annotated[OptimizerConfig, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=lambda: OptimizerConfig(learning_rate=6e-4)
    )
    dtype: str = "auto"
    """compute dtype: float32, bfloat16, or auto (bfloat16 on a GPU or TPU); parameters are float32"""
    log_every: int = 10
    """steps between log lines"""
    checkpoint_every: int = 200
    """steps between checkpoints; 0: only at the end"""
    keep: int = 3
    """checkpoints to keep"""
    resume: bool = False
    """continue the run in workdir, with its settings"""

    def __post_init__(self) -> None:
        one = (self.checkpoint is None) != (self.preset is None)
        expect(one, "checkpoint", self.checkpoint, "either this or --preset")
        expect_choice("pooling", self.pooling, POOLINGS)
        expect_ranges(self, 1, "length", "epochs", "steps", "batch_size")
        expect(0 <= self.validation < 1, "validation", self.validation, "at least 0 and below 1")
        expect_range("seed", self.seed, 0, UINT32_MAX)
        expect_choice("dtype", self.dtype, ("auto", "float32", "bfloat16"))


def class_losses(
    model: nn.Module, params: Params, batch: Batch, **options: Any
) -> tuple[tuple[Array, Array], Mapping[str, Any]]:
    """Compute a classifier's cross-entropies, one per row, as a `based_jax.training.step.Losses`."""
    (logits, _), collected = model.apply(
        params, batch["inputs"], mask=batch.get("input_mask"), mutable=[LOSSES], **options
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    weights = counted(batch).astype(losses.dtype)
    return (jnp.sum(losses * weights), jnp.sum(weights)), collected


def train(config: ClassifyConfig) -> dict[str, Any] | Outcome:
    """Run `config` to its end and return the results, or the outcome of a run that a signal stopped."""
    with sole_run(config.workdir, config.resume):
        return _train(config)


def _train(config: ClassifyConfig) -> dict[str, Any] | Outcome:
    language_model, body, tokenizer = _start(config)
    train_part, test_part = load_labelled(config.data, tokenizer)
    validation = None
    if config.validation:
        train_part, validation = train_part.split(config.validation, config.seed)
    rows = LabelledRows(train_part, config.length or max(train_part.longest, test_part.longest))
    steps_per_epoch = -(-len(rows) // config.batch_size)
    steps = config.steps or config.epochs * steps_per_epoch
    loop = LoopConfig(steps, config.log_every, steps_per_epoch, config.checkpoint_every, config.keep)
    identity = {"checksum": train_part.checksum, "length": rows.length}
    data = shuffled_batches(rows, batch_size=config.batch_size, seed=config.seed, identity=identity)
    model = SequenceClassifier(language_model, len(train_part.classes), config.pooling)
    facts = {"crc32": train_part.checksum, "sequences": len(rows), "classes": len(train_part.classes)}
    if validation is not None:
        facts["held_out_crc32"] = validation.checksum
    prepare_run(config, model=language_model.to_dict(), data=facts, may_change=_MAY_CHANGE)
    optimizer = make_optimizer(config.optimizer, steps)
    schedule = learning_rate_schedule(config.optimizer, steps)
    programs = build_programs(model, optimizer, schedule, seed=config.seed, losses_of=class_losses)
    if body is not None:
        programs = with_weights(programs, lambda: {"params": {"backbone": body}})
    export = config.workdir / "model"
    predict = jax.jit(lambda params, tokens, mask: model.apply(params, tokens, mask=mask)[0])
    lines = read_metrics(config.workdir / "metrics.jsonl") if has_checkpoints(config.workdir) else []
    accuracies = (line.get("eval_accuracy") for line in lines)
    best = max((found for found in accuracies if isinstance(found, float)), default=-1.0)

    def evaluate(state: TrainState) -> dict[str, float]:
        nonlocal best
        if validation is None:
            return {}
        found = accuracy(predict, state.params, LabelledRows(validation, rows.length), config.batch_size)
        # Saved at once: the checkpoint of the best epoch is soon replaced by newer ones.
        if found["accuracy"] > best and math.isfinite(found["loss"]):  # else `fit` stops the run
            best = found["accuracy"]
            with naming_the_last_checkpoint(config.workdir, export):
                save_classifier(export, model, state.params, train_part.classes)
        return {"eval_loss": found["loss"], "eval_accuracy": found["accuracy"]}

    def describe(values: dict[str, float], sequences: int) -> dict[str, float]:
        kept = {name: values[name] for name in ("loss", "grad_norm", "learning_rate")}
        return {**kept, "sequences_per_second": values["tokens_per_second"]}

    key = jax.random.key(config.seed)
    outcome = fit(programs, key, data, config.workdir, loop, describe=describe, evaluate=evaluate)
    if outcome.stopped_by is not None:
        return outcome
    with naming_the_last_checkpoint(config.workdir, export):
        if validation is None:
            save_classifier(export, model, outcome.state.params, train_part.classes)
        tokenizer.save(export)
    _, params, _ = load_classifier(export)
    found = accuracy(predict, params, LabelledRows(test_part, rows.length), config.batch_size)
    share, count = found["accuracy"], len(test_part)
    results = {
        "data": Path(config.data).name,
        "classes": list(train_part.classes),
        "test_sequences": count,
        "test_accuracy": share,
        "standard_error": math.sqrt(share * (1 - share) / count),
        "test_loss": found["loss"],
        "validation_accuracy": best if validation is not None else None,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(outcome.state.params)),
    }
    path = config.workdir / "results.json"
    with naming_the_last_checkpoint(config.workdir, path):
        write_json(path, results)
    return results


def accuracy(predict: Any, params: Params, rows: LabelledRows, batch_size: int) -> dict[str, float]:
    """Return accuracy and mean loss (nats) over all rows; `predict`: (params, tokens, mask) -> logits."""
    right, nats = 0, 0.0
    for batch in rows.in_order(batch_size):
        logits = predict(params, batch["inputs"], batch.get("input_mask"))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        right += int((np.argmax(logits, axis=-1) == batch["targets"])[batch["mask"]].sum())
        nats += float(np.asarray(losses, np.float64)[batch["mask"]].sum())
    return {"accuracy": right / len(rows), "loss": nats / len(rows)}


def _start(config: ClassifyConfig) -> tuple[ModelConfig, Params | None, Tokenizer]:
    """Return the language model's config, its parameters (None from scratch), and the tokenizer."""
    dtype = find_dtype(config.dtype)
    if config.checkpoint is None:
        tokenizer = load_tokenizer(config.tokenizer or "dna")
        preset = presets.find(str(config.preset))
        return preset.replace(vocab_size=tokenizer.vocab_size, dtype=dtype), None, tokenizer
    directory = find_directory(config.checkpoint)
    model, params = load_pretrained(directory, dtype=dtype)
    sizes = model.config.vocab_size, model.config.padded_vocab_size
    tokenizer = find_tokenizer(directory, config.tokenizer, *sizes)
    return model.config, params["params"], tokenizer


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 128 + n after signal n."""
    start_logging()
    results = train(parse_run(ClassifyConfig, argv, PROG))
    if isinstance(results, Outcome):
        return 128 + int(results.stopped_by or 0)
    for name, value in results.items():
        print(name, value)
    return 0
