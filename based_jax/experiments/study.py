"""A study as a command: train its grid, resuming, and draw its figure beside the papers' points."""

import dataclasses
import json
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape as plain

from based_jax import command, plot
from based_jax.directory_lock import sole_writer
from based_jax.experiments import page
from based_jax.experiments.job import Job, of_families
from based_jax.experiments.panels import Panel
from based_jax.experiments.results import FAILED, Results, best
from based_jax.experiments.runner import Runner, stopping
from based_jax.experiments.slots import find_slots
from based_jax.files import read_json
from based_jax.validate import expect

Rows = Sequence[Mapping[str, Any]]
SCALES = ("smoke", "cpu", "paper")


@dataclasses.dataclass(frozen=True)
class Study:
    """One figure of the papers."""

    name: str
    """of its module"""
    title: str
    source: str
    """which figures it is, with the papers' sections"""
    jobs: Mapping[str, Sequence[Job]]
    """the grid of each scale"""
    about: Mapping[str, str]
    """what each scale trains and tests on, in a sentence"""
    panels: Callable[[Rows, str], Sequence[Panel]]
    """of all rows of results and the scale"""
    notes: Sequence[str] = ()
    """for the reader of the page"""
    columns: int | None = None
    """panels side by side; default all"""


@dataclasses.dataclass(frozen=True)
class Flags:
    """Train the models of a figure of the papers, and draw it."""

    scale: Literal["smoke", "cpu", "paper"] = "smoke"
    """smoke: minutes on two cores; cpu: an hour or two there; paper: the papers' own grid, for GPUs"""
    out: Path | None = None
    """directory of the study; default runs/STUDY-SCALE"""
    at_once: int | None = None
    """processes at once; default: one per accelerator, or one on a CPU"""
    families: str | None = None
    """train only these lines of the figure, such as Based,Attention"""
    retry: bool = False
    """train again what failed as a whole (lack of memory, a full disk)"""
    dry_run: bool = False
    """print the command lines of the jobs, and train nothing"""

    def __post_init__(self) -> None:
        expect(self.at_once is None or self.at_once >= 1, "at_once", self.at_once, "at least 1")


def main(study: Study, argv: Sequence[str] | None = None) -> int:
    """Run a study's command; the exit status is 1 if a job failed, 128 + n after signal n."""
    prog = f"python -m based_jax.experiments.{study.name}"
    flags = command.parse(Flags, argv, prog=prog)
    jobs = of_families(study.jobs[flags.scale], flags.families)
    if flags.dry_run:
        print("\n".join(job.line for job in jobs))
        return 0
    out = flags.out or Path("runs") / f"{study.name}-{flags.scale}"
    with sole_writer(out):
        return _run(study, flags, jobs, out)


def _run(study: Study, flags: Flags, jobs: Sequence[Job], out: Path) -> int:
    """Train what has no result in `out`, draw, and return the exit status."""
    _prepare(study, flags.scale, out)
    results = Results(out / "results.jsonl")
    stopped = _train(flags, jobs, out, results)
    rows = results.rows
    for path in draw(study, flags.scale, rows, out):
        print(path)
    if stopped is not None:
        return 128 + stopped
    names = {job.name for job in jobs}
    return int(any(row["status"] == FAILED and "exit_status" in row for row in rows if row["job"] in names))


def draw(study: Study, scale: str, rows: Rows, out: Path) -> list[Path]:
    """Write figure.png and index.html; the figure is left out, and the page says so, without matplotlib."""
    typed = f"python -m based_jax.experiments.{study.name} --scale {scale}"
    sentences = [
        f"{escape(study.source)}. {escape(study.about[scale])}",
        f"<code>{escape(typed)}</code>, {escape(_facts(rows))}.",
        *study.notes,
    ]
    chosen, path = best(rows), None
    if (reason := plot.missing()) is None:
        path = out / "figure.png"
        panels = study.panels(rows, scale)
        plot.draw(study.title, f"{study.source}. {study.about[scale]}", panels, path, study.columns)
    else:
        sentences.append(reason)
    index = out / "index.html"
    page.write(index, study.title, sentences, path, chosen, rows)
    return [file for file in (path, index) if file]


def _train(flags: Flags, jobs: Sequence[Job], out: Path, results: Results) -> signal.Signals | None:
    """Train the jobs; the signal that stopped it, if one did."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    began, ended = time.perf_counter(), []

    def tell(job: Job, rows: list[dict[str, Any]]) -> None:
        ended.append(job)
        console.print(f"[{len(ended)}/{len(pending)}] {plain(_sentence(job, rows))}")
        left = (time.perf_counter() - began) / len(ended) * (len(pending) - len(ended))
        if left:
            console.print(f"    about {left / 60:.0f} min left")

    if flags.retry:
        results.drop_failed()
    pending = [job for job in jobs if not results.has(job)]
    if not pending:
        return None
    slots = find_slots(flags.at_once)
    console.print(
        f"{len(pending)} of {len(jobs)} jobs to train, {len(slots)} at once; logs in {out / 'runs'}"
    )
    runner = Runner(out, results, slots, tell)
    with stopping(runner) as received:
        runner.run(pending)
    if received:
        console.print(f"{received[0].name}: saved in {out}; the same command continues")
    return received[0] if received else None


def _sentence(job: Job, rows: list[dict[str, Any]]) -> str:
    name = f"{job.family}, {job.setting}"
    if not (chosen := best(rows)):
        return f"{name}: failed, {rows[0].get('error', 'no finite loss with any learning rate')}"
    row = chosen[0]
    return f"{name}: accuracy {row['accuracy']:.4f} at learning rate {row['learning_rate']:g}"


def _prepare(study: Study, scale: str, out: Path) -> None:
    """Write study.json, or check that the directory is this study's."""
    path = out / "study.json"
    if path.exists():
        try:
            before = read_json(path)
            held = (before["study"], before["scale"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error!r}") from error
        expect(
            held == (study.name, scale), "out", str(out), f"another directory: this holds {' '.join(held)}"
        )
        return
    expect(
        not (out / "results.jsonl").exists(), "out", str(out), "a directory of a study: it has no study.json"
    )
    out.mkdir(parents=True, exist_ok=True)
    versions = {name: metadata.version(name) for name in ("jax", "flax", "optax")}
    content = {
        "study": study.name,
        "scale": scale,
        "versions": {"python": platform.python_version(), **versions},
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _facts(rows: Rows) -> str:
    models = len(rows)
    jobs: dict[str, float] = {}
    for row in rows:  # the models of a job are trained side by side
        jobs[row["job"]] = max(jobs.get(row["job"], 0.0), row.get("seconds") or 0.0)
    hours = sum(jobs.values()) / 3600
    failed = sum(row["status"] == FAILED for row in rows)
    return f"{models} models, {failed} of them failed, {hours:.2f} hours added up over {len(jobs)} jobs"


def run(study: Study) -> None:
    """What a study's module does as a program."""
    command.run(f"python -m based_jax.experiments.{study.name}", lambda: main(study, sys.argv[1:]))
