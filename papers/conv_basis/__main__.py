"""``python -m papers.conv_basis --scale smoke|cpu --out DIR``: attention by convolutions."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import numpy as np
from rich.console import Console

from based_jax import command, plot
from based_jax.convert import load_pretrained
from based_jax.directory_lock import sole_writer
from based_jax.experiments.results import read
from based_jax.experiments.study import claim
from based_jax.files import write_lines
from based_jax.models import LanguageModel
from based_jax.typing import Int, Params
from based_jax.validate import expect_choice
from papers.conv_basis import drawn, figures, heads, recovered, replaced, report, structured, training
from papers.conv_basis.settings import SETTINGS, Setting
from papers.hyper_self_attention.hyper_lm.jobs import TRAINER

NAME = "conv_basis"
PROG = f"python -m papers.{NAME}"
PARTS = ("structured", "curves", "trained", "recovered", "pictures")


@dataclass(frozen=True)
class Flags:
    """Fit few convolutions to attention scores: of structured and drawn inputs, and of a trained model."""

    scale: Literal["smoke", "cpu"] = "smoke"
    """smoke: a check that everything runs; cpu: minutes on two cores, most of them training"""
    out: Path | None = None
    """directory of the study; default runs/conv_basis-SCALE"""
    only: str | None = None
    """comma-separated parts to run: structured, curves, trained, recovered, pictures; the others are left
    unchanged. pictures redraws the figures from stored numbers (heads.png needs the model: trained)"""

    def __post_init__(self) -> None:
        for part in self.parts:
            expect_choice("only", part, PARTS)

    @property
    def parts(self) -> list[str]:
        """The chosen parts."""
        return list(PARTS) if self.only is None else [part.strip() for part in self.only.split(",")]


def main(argv: Sequence[str] | None = None, trainer: Sequence[str] = TRAINER) -> int:
    """Run the command; only training is resumed, all else is recomputed. `trainer` starts its command line.

    The exit status is 128 + n after signal n.
    """
    flags = command.parse(Flags, argv, prog=PROG)
    jax.config.update("jax_platforms", "cpu")  # the trainer uses the accelerators; all else is float64
    out = flags.out or Path("runs") / f"{NAME}-{flags.scale}"
    with sole_writer(out):
        return _run(flags, out, trainer)


def _run(flags: Flags, out: Path, trainer: Sequence[str]) -> int:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    setting = SETTINGS[flags.scale]
    claim(out, {"study": NAME, "scale": flags.scale})
    is_drawn = (reason := plot.missing()) is None
    if reason:
        console.print(reason)
    if "structured" in flags.parts:
        console.print("inputs with a known basis")
        write_lines(out / "structured.jsonl", structured.rows(setting))
    if "curves" in flags.parts:
        console.print(f"error against the number of segments, {setting.length} tokens")
        write_lines(out / "curves.jsonl", drawn.rows(setting))
    if {"trained", "recovered"} & set(flags.parts):
        export = training.train(setting, out, console.print, trainer)
        if not isinstance(export, Path):
            console.print(f"{export.name}: saved in {out}; the same command continues")
            return 128 + export
        model, params = load_pretrained(str(export))
        packed = heads.held_out(setting)
        if "trained" in flags.parts:
            console.print("heads of the trained model")
            write_lines(out / "trained.jsonl", heads.rows(setting, model, params, packed))
            if is_drawn:
                _draw_heads(
                    model, params, heads.windows(packed, setting.texts, setting.window)["inputs"], out
                )
        if "recovered" in flags.parts:
            console.print("the model with conv-basis attention, and Recover on each text")
            texts = replaced.Texts.of(setting, model, params, packed)
            rows = [*replaced.rows(setting, texts), *recovered.rows(setting, texts)]
            write_lines(out / "recovered.jsonl", rows)
    if is_drawn:
        _draw(setting, flags.parts, out)
    print(report.write(flags.scale, out))
    return 0


def _draw_heads(model: LanguageModel, params: Params, tokens: Int[np.ndarray, "B N"], out: Path) -> None:
    scores = heads.first_scores(heads.look(model, params, tokens[:1]))
    figures.draw_heads(scores, out / "heads.png")


_REPLACED = (
    "{texts} held-out texts of {length} bytes, weights unchanged. Recover: the paper's algorithm on each "
    "text and head, with the best T and delta of those tried."
)


def _draw(setting: Setting, parts: Sequence[str], out: Path) -> None:
    """Draw the curves of the parts; for `pictures` all stored curves."""
    title = "Error of attention through k segments"
    ends = (
        "Starts of segments: equally spaced, geometric, or recovered from the scores. All columns of a "
        "segment as its first (anchors) or as their mean. Uniform average: attention without scores."
    )
    means = f"Means of {setting.texts} held-out texts of {setting.window} bytes. {ends}"
    made = {
        "curves": (f"{title}, drawn inputs", f"Means of draws, {setting.length} tokens. {ends}"),
        "trained": (f"{title}, heads of a trained model", means),
    }
    for part, (heading, facts) in made.items():
        curves = report.error_curves(read(out / f"{part}.jsonl"))
        if curves and {part, "pictures"} & set(parts):
            figures.draw_curves(curves, heading, facts, out / f"{part}.png")
    rows = read(out / "recovered.jsonl")
    if rows and {"recovered", "pictures"} & set(parts):
        facts = _REPLACED.format(**rows[0])
        figures.draw_replaced(report.lines(rows), facts, out / "recovered.png")


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
