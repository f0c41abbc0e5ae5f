"""Run a study's processes: `train lm` writes metrics, and each run becomes one record."""

import json
import math
from pathlib import Path
from statistics import fmean, median
from typing import Any

from based_jax.experiments.job import Job
from based_jax.experiments.results import Row
from based_jax.experiments.runner import Runner, Slot

POINTS = 12
"""Most points of a loss curve, evenly spaced in the logarithm of the step, a factor of sqrt(2) apart."""


class LMRunner(Runner):
    """A `Runner` for a trainer that writes metrics.jsonl instead of results.jsonl."""

    def _process(self, job: Job, workdir: Path, slot: Slot) -> int:
        status = super()._process(job, workdir, slot)
        if status == 0:
            lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            tokens = job.flags["batch-size"] * job.flags["length"]
            record = summary([json.loads(line) for line in lines], tokens)
            (workdir / "results.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
        return status


def summary(lines: list[Row], tokens: int) -> dict[str, Any]:
    """Summarize a run from the lines of metrics.jsonl and the number of tokens per step.

    `eval_loss` (nats per token, of the last line), `perplexity`, `steps`, `seconds_per_step` (the median of
    the logged steps) and `curve`, pairs of a step and the mean training loss since the point before. A run
    without a finite loss has failed.
    """
    last = lines[-1]
    if last["eval_loss"] is None:
        return {"status": "failed", "error": "the last loss is not finite"}
    return {
        "status": "finished",
        "eval_loss": last["eval_loss"],
        "perplexity": math.exp(last["eval_loss"]),
        "steps": last["step"],
        "seconds_per_step": median(tokens / line["tokens_per_second"] for line in lines),
        "curve": curve([line["step"] for line in lines], [line["loss"] for line in lines]),
    }


def curve(steps: list[int], losses: list[float]) -> list[tuple[int, float]]:
    """Return at most `POINTS` ends of ranges of steps with the ranges' mean losses.

    Runs with the same steps have the same ranges, so that their curves can be subtracted.
    """
    points, begin = [], 0
    for end in sorted({round(steps[-1] * 2 ** (-i / 2)) for i in range(POINTS)}):
        inside = [loss for step, loss in zip(steps, losses, strict=True) if begin < step <= end]
        if inside:
            points.append((end, fmean(inside)))
            begin = end
    return points
