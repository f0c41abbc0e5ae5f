"""Run a study as a command: train its grid, resuming, and draw its figure next to the papers' points."""

import dataclasses
import json
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from rich.console import Console
from rich.markup import escape as plain

from based_jax import command, html_page, plot
from based_jax.directory_lock import sole_writer
from based_jax.experiments.job import ABOUT, TEXTS, Job, of_families
from based_jax.experiments.results import FAILED, Results, Row, Rows, best
from based_jax.experiments.runner import Runner, find_slots, stopping
from based_jax.files import read_object, write_json
from based_jax.plot import Bars, Panel
from based_jax.training.run.directory import versions
from based_jax.validate import expect, expect_ranges

SCALES = ("smoke", "cpu", "paper")

_STATES = (
    "States are of one sequence of the longest test: four bytes for each float of the papers' formulas, and "
    "what the model's <code>init_state</code> holds."
)


@dataclasses.dataclass(frozen=True)
class Study:
    """One figure of the papers."""

    name: str  # name of its module
    title: str
    source: str  # the papers' figures and sections
    jobs: Mapping[str, Sequence[Job]]  # the grid of each scale
    about: Mapping[str, str]  # the data of each scale, in one sentence
    panels: Callable[[Rows, str], Sequence[Panel | Bars]]  # from all rows of results and the scale
    notes: Sequence[str] = ()  # notes on the page
    columns: int | None = None  # panels side by side; default all
    command: str = ""  # its command line; default: that of a module of this package


@dataclasses.dataclass(frozen=True)
class Flags:
    """Train the models of a figure of the papers, and draw it."""

    scale: Literal["smoke", "cpu", "paper"] = "smoke"
    """smoke: minutes on two cores; cpu: hours there; paper: the papers' own grid, for GPUs"""
    out: Path | None = None
    """directory of the study; default runs/STUDY-SCALE"""
    at_once: int | None = None
    """number of processes at once; default: one per accelerator, or two on a CPU"""
    families: str | None = None
    """train only these lines of the figure, such as Based,Attention"""
    retry: bool = False
    """train jobs again that failed completely (out of memory, full disk)"""
    dry_run: bool = False
    """print what would be trained, and stop"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "at_once")


def make_study(name: str, jobs: Mapping[str, Sequence[Job]], panels: Any) -> Study:
    """Make a study with the texts of studies.toml; scales that it does not describe are Based's."""
    held = {field.name for field in dataclasses.fields(Study)}
    texts = {field: value for field, value in TEXTS[name].items() if field in held}
    about = {**ABOUT, **texts.pop("about", {})}
    return Study(name, jobs=jobs, panels=panels, about=about, **texts)


F = TypeVar("F", bound=Flags)


def main(study: Study, argv: Sequence[str] | None = None) -> int:
    """Run a study's command; the exit status is 1 if a job failed, 128 + n after signal n."""
    return run_command(
        _typed(study), argv, lambda flags: study.jobs[flags.scale], partial(train_study, study), Flags
    )


def run(study: Study) -> NoReturn:
    """Run a study's command in this process, which then ends: ``python -m`` of its module."""
    command.run(_typed(study), partial(main, study))


def run_command(
    prog: str,
    argv: Sequence[str] | None,
    jobs_of: Callable[[F], Sequence[Job]],
    run: Callable[[F, Sequence[Job], Path], int],
    kind: type[F],
    show: Callable[[Sequence[Job]], None] = lambda jobs: print("\n".join(job.line for job in jobs)),
) -> int:
    """Parse a study's flags, which are of a `kind`, and `show` or `run` the chosen jobs in its directory."""
    flags = command.parse(kind, argv, prog=prog)
    jobs = of_families(jobs_of(flags), flags.families)
    if flags.dry_run:
        show(jobs)
        return 0
    out = flags.out or Path("runs") / f"{re.split('[ .]', prog)[-1].replace('-', '_')}-{flags.scale}"
    with sole_writer(out):
        return run(flags, jobs, out)


def claim(out: Path, facts: Mapping[str, Any], also: Mapping[str, Any] = {}) -> None:
    """Write study.json with the facts of a study, or check that the directory holds the same study.

    The facts in `also` are written but not compared.
    """
    path = out / "study.json"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, {**facts, **also})
        return
    content = read_object(path)
    held = {name: content.get(name) for name in facts}
    expected = f"another directory: this holds another study or scale, {held}"
    expect(held == json.loads(json.dumps(facts)), "out", str(out), expected)


def train(
    flags: Flags,
    jobs: Sequence[Job],
    out: Path,
    what: str,
    make_runner: Callable[..., Runner],
    sentence: Callable[[list[Row]], str],
    write: Callable[[Rows], Sequence[Path]],
) -> int:
    """Train the jobs, called `what`, that have no result in `out`, and show the results.

    `make_runner` has the arguments of `Runner`; `sentence` formats the rows of a job that has ended; `write`
    writes files from all rows. Returns the exit status: 128 + n after signal n, 1 if one of the jobs failed
    or was stopped.
    """
    results = Results(out / "results.jsonl")
    if flags.retry:
        results.drop_failed()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if count := results.move_replaced(jobs, out / "replaced.jsonl"):
        console.print(f"{count} results of jobs that have other flags now are in {out / 'replaced.jsonl'}")
    pending = [job for job in jobs if not results.has(job)]
    began, ended = time.perf_counter(), []
    received: list[signal.Signals] = []

    def report(job: Job, rows: list[Row]) -> None:
        ended.append(job)
        said = f"{job.family}, {job.setting}: {sentence(rows)}"
        console.print(f"[{len(ended)}/{len(pending)}] {plain(said)}")
        left = (time.perf_counter() - began) / len(ended) * (len(pending) - len(ended))
        if left:
            console.print(f"    about {left / 60:.0f} min left")

    if pending:
        runner = make_runner(out, results, find_slots(flags.at_once), report)
        console.print(f"{len(pending)} {what} to train, {runner.workers} at once; logs in {out / 'runs'}")
        with stopping(runner) as received:
            runner.run(pending)
    if received:
        console.print(f"{received[0].name}: saved in {out}; the same command continues")
    for path in write(results.rows):
        print(path)
    if received:
        return 128 + received[0]
    if stopped := [job.name for job in jobs if not results.has(job)]:
        console.print(f"stopped: {', '.join(stopped)}; the same command continues")
        return 1
    rows = [row for job in jobs for row in results.of(job)]
    return int(any(row["status"] == FAILED and "exit_status" in row for row in rows))


def train_study(
    study: Study, flags: Flags, jobs: Sequence[Job], out: Path, facts: Mapping[str, Any] = {}
) -> int:
    """Train the jobs that have no result in `out`, and draw the study; return the exit status as `train`.

    Further `facts` in study.json distinguish the study from others of its name and scale.
    """
    is_known = (out / "study.json").exists() or not (out / "results.jsonl").exists()
    expect(is_known, "out", str(out), "a directory of a study: it has no study.json")
    also = {"versions": versions("jax", "flax", "optax")}
    claim(out, {"study": study.name, "scale": flags.scale, **facts}, also)
    write = partial(draw, study, flags.scale, out=out)
    return train(flags, jobs, out, f"of {len(jobs)} jobs", Runner, _sentence, write)


def draw(study: Study, scale: str, rows: Rows, out: Path) -> list[Path]:
    """Write figure.png and index.html; without matplotlib there is no figure, and the page says so."""
    typed = study.command or f"{_typed(study)} --scale {scale}"
    facts = f"{study.source}. {study.about[scale]}"
    figure, index, reason = out / "figure.png", out / "index.html", plot.missing()
    sentences = [escape(facts), f"<code>{escape(typed)}</code>, {escape(_facts(rows))}.", *study.notes]
    if reason is None:
        plot.draw(study.title, facts, study.panels(rows, scale), figure, study.columns)
    chosen = best(rows)
    slices = _slices(chosen)
    parts = [
        *[f"<p>{sentence}</p>" for sentence in sentences],
        html_page.image(figure, study.title) if reason is None else f"<p>{reason}</p>",
        "<h2>Each model with its best learning rate</h2>",
        f"<p>{_STATES}</p>",
        _table(chosen, slices),
        "<details><summary>Every learning rate and seed</summary>",
        _table(rows, slices),
        "</details>",
    ]
    html_page.write_page(index, study.title, parts)
    return [index] if reason else [figure, index]


def _slices(rows: Rows) -> list[tuple[str, str]]:
    """Return the slices that distinguish results: numbers of pairs, or lengths if the pairs are all equal."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        for key, values in (row.get("slices") or {}).items():
            found.setdefault(key, {}).update(dict.fromkeys(values))
    key = "num_pairs" if "num_pairs" in found else next(iter(found), "")
    return [(key, value) for value in sorted(found.get(key, {}), key=float)]


def _table(rows: Rows, slices: Sequence[tuple[str, str]]) -> str:
    names = [f"{value} pairs" if key == "num_pairs" else f"{key} {value}" for key, value in slices]
    heads = {value: (name, ".3f") for name, (_, value) in zip(names, slices, strict=True)}
    columns = {
        "family": ("family", "text"),
        "setting": ("setting", "text"),
        "parameters": ("parameters", ",d"),
        "state": ("state, bytes", ",d"),
        "state_bytes": ("held, bytes", ",d"),
        "accuracy": ("accuracy", ".4f"),
        **heads,
        "learning_rate": ("learning rate", ".3g"),
        "seed": ("seed", "text"),
        "epochs": ("epochs", "g"),
        "seconds": ("seconds", ".0f"),
        "ended": ("status", "prose"),
    }
    return html_page.table([_cells(row, slices) for row in rows], columns)


def _cells(row: Mapping[str, Any], slices: Sequence[tuple[str, str]]) -> Row:
    size, of_slices = row.get("state_size"), row.get("slices") or {}
    shown = {value: of_slices.get(key, {}).get(value) for key, value in slices}
    ended = ": ".join(filter(None, (row["status"], row.get("error"))))
    return {**row, **shown, "state": size and 4 * size, "ended": ended}


def _sentence(rows: list[Row]) -> str:
    if not (chosen := best(rows)):
        return f"failed, {rows[0].get('error', 'no finite loss with any learning rate')}"
    return f"accuracy {chosen[0]['accuracy']:.4f} at learning rate {chosen[0]['learning_rate']:g}"


def _facts(rows: Rows) -> str:
    jobs: dict[str, float] = {}
    for row in rows:  # the models of a job are trained side by side
        jobs[row["job"]] = max(jobs.get(row["job"], 0.0), row.get("seconds") or 0.0)
    failed, hours = sum(row["status"] == FAILED for row in rows), sum(jobs.values()) / 3600
    return f"{len(rows)} models, {failed} of them failed, {hours:.2f} hours added up over {len(jobs)} jobs"


def _typed(study: Study) -> str:
    return f"based-jax experiments {study.name.replace('_', '-')}"
