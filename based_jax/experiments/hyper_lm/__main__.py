"""``python -m based_jax.experiments.hyper_lm --scale smoke|cpu|paper --out DIR``: compare language models."""

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.markup import escape

from based_jax import command
from based_jax.directory_lock import sole_writer
from based_jax.experiments.hyper_lm import report
from based_jax.experiments.hyper_lm.jobs import MODELS, SCALES, TRAINER, jobs, models
from based_jax.experiments.hyper_lm.runs import LMRunner
from based_jax.experiments.job import Job, of_families
from based_jax.experiments.results import FAILED, Results
from based_jax.experiments.runner import stopping
from based_jax.experiments.slots import find_slots
from based_jax.experiments.study import Flags
from based_jax.models import ModelConfig
from based_jax.validate import expect

NAME = "hyper_lm"
PROG = f"python -m based_jax.experiments.{NAME}"


def main(argv: Sequence[str] | None = None, trainer: Sequence[str] = TRAINER) -> int:
    """The command; the exit status is 1 if a run failed, 128 + n after signal n.

    Args:
        argv: flags.
        trainer: words of the processes before their flags.
    """
    flags = command.parse(Flags, argv, prog=PROG)
    chosen = of_families(jobs(SCALES[flags.scale]), flags.families)
    if flags.dry_run:
        print("\n".join(job.line for job in chosen))
        return 0
    # Shapes are all that is computed here: the accelerators belong to the trainers.
    jax.config.update("jax_platforms", "cpu")
    out = flags.out or Path("runs") / f"{NAME}-{flags.scale}"
    with sole_writer(out):
        return _run(flags, chosen, out, trainer)


def _run(flags: Flags, chosen: Sequence[Job], out: Path, trainer: Sequence[str]) -> int:
    """Train what has no result in `out`, write the report, and return the exit status."""
    prepare(out, flags.scale, models(SCALES[flags.scale]))
    results = Results(out / "results.jsonl")
    if flags.retry:
        results.drop_failed()
    stopped = _train(chosen, out, results, flags.at_once, trainer)
    for path in report.write(flags.scale, results.rows, out):
        print(path)
    if stopped is not None:
        return 128 + stopped
    names = {job.name for job in chosen}
    return int(any(row["status"] == FAILED and row["job"] in names for row in results.rows))


def prepare(out: Path, scale: str, configs: Mapping[str, ModelConfig]) -> None:
    """Write study.json and the models' files, or check that the directory has the same.

    Raises:
        ValueError: it holds something else.
    """
    files = {f"{MODELS}/{key}.json": config.to_json() for key, config in configs.items()}
    files["study.json"] = json.dumps({"study": NAME, "scale": scale}, indent=2)
    for name, text in files.items():
        path = out / name
        if path.exists():
            same = path.read_text(encoding="utf-8").strip() == text
            expect(same, "out", str(out), f"another directory: its {name} is of another study or scale")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")


def _train(
    chosen: Sequence[Job], out: Path, results: Results, at_once: int | None, trainer: Sequence[str]
) -> signal.Signals | None:
    """Train what has no result yet; the signal that stopped it, if one did."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    pending = [job for job in chosen if not results.has(job)]
    if not pending:
        return None
    ended: list[Job] = []

    def tell(job: Job, rows: list[dict[str, Any]]) -> None:
        ended.append(job)
        (row,) = rows
        said = f"perplexity {row['perplexity']:.3f}" if row["status"] != FAILED else f"failed, {row['error']}"
        console.print(f"[{len(ended)}/{len(pending)}] {escape(f'{job.family}, {job.setting}: {said}')}")

    slots = find_slots(at_once)
    console.print(f"{len(pending)} models to train, {len(slots)} at once; logs in {out / 'runs'}")
    runner = LMRunner(out, results, slots, tell, trainer)
    with stopping(runner) as received:
        runner.run(pending)
    if not received:
        return None
    console.print(f"{received[0].name}: saved in {out}; the same command continues")
    return received[0]


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
