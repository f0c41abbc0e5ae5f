"""``make demo``: train a byte-level Based on Python's own source in minutes, then sample from it."""

import dataclasses
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

from based_jax import command, plot
from based_jax.data import PackedTokens
from based_jax.generate.text import TextStream
from based_jax.training.commands.lm import LMConfig, Run, train
from based_jax.training.devices.host_memory import keep_freed_memory
from based_jax.training.optimizer import OptimizerConfig
from based_jax.training.run.checkpoints import start_logging
from based_jax.training.run.metrics import read_metrics
from based_jax.validate import expect_range

PROG = "based-jax train demo"
PROMPT = "class Parser:\n    def __init__(self, "


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Train based-tiny on the Python standard library's source, evaluate, sample and plot."""

    workdir: Path = Path("runs/demo")
    """run directory; an unfinished run in it is resumed"""
    steps: int = 600
    """optimizer steps of 8 x 256 bytes"""
    sample: int = 400
    """bytes to sample"""

    def __post_init__(self) -> None:
        expect_range("sample", self.sample, 1)


def gzip_bits_per_byte(packed: PackedTokens) -> float:
    """Return the size of the same text under ``gzip -9``, in bits per byte: the baseline to beat."""
    text = packed.tokens[packed.tokens < 256].astype(np.uint8).tobytes()
    return 8 * len(gzip.compress(text, compresslevel=9)) / len(text)


def continuation(run: Run, length: int) -> str:
    """Return `PROMPT` followed by a sampled continuation."""
    sampling = {"temperature": 0.6, "rng": jax.random.key(1), "top_p": 0.95, "chunk": 64}
    model = run.model, run.outcome.state.params, run.tokenizer
    return PROMPT + "".join(TextStream(*model, PROMPT, max_new_tokens=length, **sampling))


def plot_losses(workdir: Path, mark: float) -> Path:
    """Plot training and held-out bits per byte over the steps, as a PNG in `workdir`."""
    lines = read_metrics(workdir / "metrics.jsonl")
    evaluated = [line for line in lines if "eval_bits_per_byte" in line]
    figure = plot.empty(7, 4)
    axes = figure.subplots()

    def line(lines: list[dict[str, Any]], metric: str, style: str, **options: Any) -> None:
        axes.plot([x["step"] for x in lines], [x[metric] for x in lines], style, **options)

    line(lines, "bits_per_byte", "-", color="#E69F00", label="training")
    line(evaluated, "eval_bits_per_byte", "o-", color=plot.color("Based"), label="held out")
    axes.axhline(mark, color=plot.GREY, linestyle="--", label="gzip -9, held out")
    plot.frame(axes, "based-tiny on Python's standard library", "step", "bits per byte")
    axes.set_ylim(1, 6)
    plot.legend(figure, ncols=3)
    path = workdir / "loss.png"
    plot.save(figure, path)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    demo = command.parse(DemoConfig, argv, prog=PROG)
    start_logging()
    keep_freed_memory()
    run = train(
        LMConfig(
            workdir=demo.workdir,
            preset="based-tiny",
            tokenizer="byte",
            steps=demo.steps,
            batch_size=8,
            optimizer=OptimizerConfig(optimizer="muon", learning_rate=8e-3, warmup=0.05),
            eval_every=-(-demo.steps // 2),
            checkpoint_every=200,
            resume=True,
        )
    )
    if run.outcome.stopped_by is not None:
        return 128 + run.outcome.stopped_by
    mark = gzip_bits_per_byte(cast(PackedTokens, run.held_out))  # text in memory
    curve = plot.missing() or plot_losses(demo.workdir, mark)
    size, ours = run.held_out.num_bytes, run.metrics["eval_bits_per_byte"]
    print(f"\nheld out, {size:,} bytes of Python source that the model was not trained on:")
    print(f"  based-tiny  {ours:.3f} bits per byte\n  gzip -9     {mark:.3f} bits per byte")
    print(f"\na sample (temperature 0.6):\n\n{continuation(run, demo.sample)}\n")
    print(
        f"loss curve: {curve}\ncheckpoints: {demo.workdir / 'checkpoints'}\nmodel: {demo.workdir / 'model'}"
    )
    return 0
