"""Train the language model whose heads are examined, with `train lm`, once per directory."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.markup import escape

from based_jax.data import ByteTokenizer
from based_jax.experiments.results import FAILED, Results
from based_jax.experiments.runner import find_slots, stopping
from based_jax.files import read_json
from based_jax.models import MixerSpec, ModelConfig, presets
from based_jax.validate import expect
from papers.conv_basis.settings import Setting
from papers.hyper_self_attention.hyper_lm.jobs import MODELS, TRAINER, LMJob
from papers.hyper_self_attention.hyper_lm.runs import LMRunner

RECORD = "training.jsonl"
"""File in a study's directory with `train lm`'s results"""
FRACTION = 0.02
"""Share of the documents held out from training"""


def model_config(setting: Setting) -> ModelConfig:
    """Softmax attention with rotary positions on half of each head, as in `attn-tiny`, in two layers."""
    tiny = presets.get("attn-tiny")
    attention = MixerSpec("attention", {**tiny.layer(0).options, "num_heads": 2})
    sizes = {"d_model": setting.d_model, "mlp_hidden": 2 * setting.d_model, "max_length": setting.window}
    return tiny.replace(vocab_size=ByteTokenizer.vocab_size, schedule="AA", mixers={"A": attention}, **sizes)


def job(setting: Setting) -> LMJob:
    """Return the one run: bytes of Python's standard library, seed 0."""
    steps = setting.steps
    flags = {"steps": steps, "batch-size": setting.batch_size, "length": setting.window}
    flags |= {"learning-rate": 3e-3, "warmup": 0.1}
    flags |= {"held-out": FRACTION, "held-out-bytes": setting.held_out_bytes}
    flags |= {"eval-every": steps, "checkpoint-every": 0, "log-every": 1, "seed": 0}
    return LMJob("attention", f"{steps} steps", "attention", flags)


def train(
    setting: Setting, out: Path, report: Callable[[str], None], trainer: Sequence[str] = TRAINER
) -> Path | signal.Signals:
    """Train the model unless the study's directory has it; report before and after.

    Returns the model's directory, or the signal that stopped the training, which the next call resumes.
    Raises an OSError with the reason if training failed.
    """
    run = job(setting)
    export = out / "runs" / run.name / "model"
    config = out / MODELS / f"{run.model}.json"
    is_same = not config.exists() or ModelConfig.from_dict(read_json(config)) == model_config(setting)
    expect(is_same, "out", str(out), "another directory: this holds a model of other settings")
    if not export.exists():
        (out / RECORD).unlink(missing_ok=True)  # it belongs to a missing model, or to a failure
    results = Results(out / RECORD)
    if results.has(run):
        return export
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(model_config(setting).to_json() + "\n", encoding="utf-8")
    report(f"training a model for {setting.steps} steps; log in {escape(str(export.parent / 'log.txt'))}")
    runner = LMRunner(out, results, find_slots(1)[:1], lambda job, rows: None, trainer)
    with stopping(runner) as received:
        runner.run([run])
    if received:
        return received[0]
    (row,) = results.rows
    if row["status"] == FAILED:
        raise OSError(f"training failed: {row['error']}")
    report(f"perplexity {row['perplexity']:.3f} per byte of the held-out text")
    return export
