"""Compare language models: ``python -m papers.hyper_self_attention.hyper_lm --scale cpu --out DIR``."""

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax

from based_jax import command
from based_jax.experiments.job import Job
from based_jax.experiments.results import FAILED, Row
from based_jax.experiments.study import Flags, claim, run_command, train
from based_jax.models import ModelConfig
from based_jax.validate import expect
from papers.hyper_self_attention.hyper_lm import report
from papers.hyper_self_attention.hyper_lm.jobs import MODELS, SCALES, TRAINER, jobs, models
from papers.hyper_self_attention.hyper_lm.runs import LMRunner

NAME = "hyper_lm"
PROG = f"python -m papers.hyper_self_attention.{NAME}"


def main(argv: Sequence[str] | None = None, trainer: Sequence[str] = TRAINER) -> int:
    """Run the command; `trainer` starts the command line of the training processes.

    The exit status is 1 if a run failed, 128 + n after signal n.
    """
    run = partial(_run, trainer=trainer)
    return run_command(PROG, argv, lambda flags: jobs(SCALES[flags.scale]), run, Flags)


def _run(flags: Flags, chosen: Sequence[Job], out: Path, trainer: Sequence[str]) -> int:
    # This process only computes shapes: the trainers use the accelerators.
    jax.config.update("jax_platforms", "cpu")
    prepare(out, flags.scale)
    runner, write = partial(LMRunner, trainer=trainer), partial(report.write, flags.scale, out=out)
    return train(flags, chosen, out, "models", runner, _sentence, write)


def prepare(out: Path, scale: str) -> None:
    """Write study.json and the models' files, or check that the directory has the same."""
    claim(out, {"study": NAME, "scale": scale})
    (out / MODELS).mkdir(exist_ok=True)
    for key, config in models(SCALES[scale]).items():
        path = out / MODELS / f"{key}.json"
        same = not path.exists() or _read(path) == config
        expect(same, "out", str(out), f"another directory: its {path.name} is of another study or scale")
        path.write_text(config.to_json() + "\n", encoding="utf-8")


def _read(path: Path) -> ModelConfig | None:
    """Return the model of a file, which an earlier version may have written with fewer fields."""
    try:
        return ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        return None


def _sentence(rows: list[Row]) -> str:
    (row,) = rows
    return f"failed, {row['error']}" if row["status"] == FAILED else f"perplexity {row['perplexity']:.3f}"


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
