"""The language model whose heads are looked at, trained by `train.lm` once per directory."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from based_jax.data import ByteTokenizer
from based_jax.experiments.conv_basis.settings import Setting
from based_jax.experiments.hyper_lm.jobs import MODELS, TRAINER, LMJob
from based_jax.experiments.hyper_lm.runs import LMRunner
from based_jax.experiments.results import FAILED, Results
from based_jax.experiments.runner import stopping
from based_jax.experiments.slots import find_slots
from based_jax.models import MixerSpec, ModelConfig, presets

RECORD = "training.jsonl"
"""File of a study's directory with what `train.lm` reported"""
FRACTION = 0.02
"""Of the documents, held out from training"""


def model_config(setting: Setting) -> ModelConfig:
    """Softmax attention with rotary positions on half of each head, as in `attn-tiny`, in two layers."""
    tiny = presets.get("attn-tiny")
    attention = MixerSpec("attention", {**tiny.layer(0).options, "num_heads": 2})
    return tiny.replace(
        vocab_size=ByteTokenizer.vocab_size, d_model=setting.d_model, schedule="AA",
        mixers={"A": attention}, mlp_hidden=2 * setting.d_model, max_length=setting.window,
    )  # fmt: skip


def job(setting: Setting) -> LMJob:
    """The one run: bytes of Python's standard library, seed 0."""
    flags = {
        "steps": setting.steps, "batch-size": setting.batch_size, "length": setting.window,
        "learning-rate": 3e-3, "warmup": 0.1, "held-out": FRACTION, "held-out-bytes": setting.held_out_bytes,
        "eval-every": setting.steps, "checkpoint-every": 0, "log-every": 1, "seed": 0,
    }  # fmt: skip
    return LMJob("attention", f"{setting.steps} steps", "attention", flags)


def train(
    setting: Setting, out: Path, tell: Callable[[str], None], trainer: Sequence[str] = TRAINER
) -> Path | signal.Signals:
    """The directory of the trained model, or the signal that stopped it; the next call continues it.

    Args:
        setting: of the model and its training.
        out: the study's directory; the model is trained if this does not have it.
        tell: called with a sentence before and after.
        trainer: words of the process before its flags.

    Raises:
        OSError: it failed; the message has its last words.
    """
    run = job(setting)
    export = out / "runs" / run.name / "model"
    if not export.exists():
        (out / RECORD).unlink(missing_ok=True)  # of a model that is not here, or of a failure
    results = Results(out / RECORD)
    if results.has(run):
        return export
    config = out / MODELS / f"{run.model}.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(model_config(setting).to_json() + "\n", encoding="utf-8")
    tell(f"training a model for {setting.steps} steps; log in {escape(str(export.parent / 'log.txt'))}")
    runner = LMRunner(out, results, find_slots(1)[:1], lambda job, rows: None, trainer)
    with stopping(runner) as received:
        runner.run([run])
    if received:
        return received[0]
    (row,) = results.rows
    if row["status"] == FAILED:
        raise OSError(f"training failed: {row['error']}")
    tell(f"perplexity {row['perplexity']:.3f} per byte of the held-out text")
    return export


def record(out: Path) -> dict[str, Any] | None:
    """What is known of the trained model's training; None before it."""
    rows = Results(out / RECORD).rows if (out / RECORD).exists() else []
    return rows[0] if rows else None
