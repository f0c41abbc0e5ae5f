"""Compare mixers by recall and state: ``based-jax compare my_package.mixer based attention``.

Each mixer is trained at several widths in the papers' two-layer model, and is a line of the figure. A recall
card of each line's best model is in cards/index.html of the output directory, which is otherwise that of a
study. The same command continues; with more mixers or widths it trains these only.
"""

import dataclasses
import functools
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import jax
import tyro

from based_jax import command
from based_jax.evals.card.page import write_recall_card
from based_jax.evals.card.recall_card import recall_card
from based_jax.experiments import mqar_tradeoff
from based_jax.experiments.job import ABOUT, ONE_RATE, Job
from based_jax.experiments.results import STATE_AXIS, best, lines, read, state_bytes
from based_jax.experiments.study import Flags, Rows, Study, run_command, train_study
from based_jax.experiments.tasks import STUDY_OF, TaskJob, task_flags
from based_jax.files import read_object
from based_jax.mixers.registry import class_of, expect_options
from based_jax.models.backbones import ALIASES
from based_jax.plot import Panel
from based_jax.testing import check_mixer
from based_jax.training.commands.synthetic import SyntheticConfig, facts_of
from based_jax.training.named_options import parse_mixer, split_mixers
from based_jax.validate import expect, expect_choice, expect_ranges

PROG = "based-jax compare"

_WIDTHS = {"smoke": "16,32", "cpu": "32,64", "paper": "64,128,256"}
_FAMILIES: dict[str, str] = {}
"""Mixer -> its line in the papers' figure, which has its colour."""
for _job in mqar_tradeoff.STUDY.jobs["cpu"]:
    _FAMILIES.setdefault(split_mixers("layers", _job.model)[-1].partition(":")[0], _job.family)
_NOTES = ("A line joins the models that recall more than every smaller one of their mixer.",)


class ComparedJob(Job):
    """A mixer in the papers' two-layer model, on any task."""

    trainer = TaskJob.trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Flags):
    """Train mixers on recall, and draw what they recall against the size of their state."""

    mixers: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MIXER ...")]
    """names such as based, or my_package.mixer:MyMixer; options as in based:feature_dim=8:num_heads=2"""
    out: Path = Path("runs/compare")
    """directory of the comparison"""
    task: str = "mqar"
    """mqar, or a task of based-jax experiments tasks or capabilities, such as forgetting"""
    scale: Literal["smoke", "cpu", "paper"] = "cpu"
    """data of the studies: smoke has 2 and 4 pairs in 32 tokens, cpu 4 to 16 in up to 64; paper is for GPU"""
    widths: str | None = None
    """widths of the models, a point of each line; default: 32,64 (smoke: 16,32; paper: 64,128,256)"""
    epochs: int | None = None
    """passes over the training examples; default: those of the models in --out, else the study's (cpu: 6)"""
    learning_rates: str | None = None
    """learning rates, of which the best counts; default: the study's (cpu: 0.01)"""
    seeds: str = "0"
    """seeds, over which accuracies are averaged"""

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(len(self.mixers) > 0, "mixers", self.mixers, "at least one, such as based")
        expect_ranges(self, 1, "epochs")
        expect_choice("task", self.task, ("mqar", *STUDY_OF))
        has_data = self.task == "mqar" or self.scale != "paper"
        expect(has_data, "scale", self.scale, f"cpu or smoke, since the papers have no grid of {self.task}")
        is_fine = all(width.strip().isdecimal() for width in (self.widths or "1").split(","))
        expect(is_fine, "widths", self.widths, "numbers such as 32,64")

    def jobs(self) -> list[Job]:
        """Return a job for each mixer and width."""
        record = self.out / "study.json"
        held = read_object(record) if record.exists() else {}
        epochs = self.epochs or held.get("epochs")
        flags = dict(ONE_RATE[self.scale] if self.task == "mqar" else task_flags(self.task, self.scale))
        flags |= {"epochs": epochs or flags["epochs"], "seeds": self.seeds}
        flags |= {"learning_rates": self.learning_rates or flags["learning_rates"]}
        widths = [int(width) for width in (self.widths or _WIDTHS[self.scale]).split(",")]
        found: dict[str, Job] = {}
        for text in self.mixers:
            mixer, options = parse_mixer("mixers", text)
            expect_options(ALIASES.get(mixer, mixer), options)
            family, more = _FAMILIES.get(mixer, mixer), [f"{name} {value}" for name, value in options.items()]
            for width in widths:
                setting = ", ".join([f"d {width}", *more])
                job = ComparedJob(family, setting, text.strip(), {**flags, "d_model": width})
                found[job.name] = job
        return list(found.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a model failed, 128 + n after signal n."""
    jax.config.update("jax_platforms", "cpu")  # the trainers use the accelerators
    typed = f"{PROG} {shlex.join(sys.argv[2:] if argv is None else argv)}"
    return run_command(PROG, argv, Options.jobs, functools.partial(_run, typed), Options, _show)


def _run(typed: str, options: Options, jobs: Sequence[Job], out: Path) -> int:
    _show(jobs)
    for job in {job.model: job for job in reversed(jobs)}.values():
        _expect_laws(job)
    facts = {name: jobs[0].flags[name] for name in ("epochs", "learning_rates", "seeds")}
    study = dataclasses.replace(_study(options, facts["epochs"]), command=typed)
    status = train_study(study, options, jobs, out, {"task": options.task, **facts})
    if status < 128 and options.task == "mqar":
        _write_cards(out, {job.name for job in jobs})
    return status


def _show(jobs: Sequence[Job]) -> None:
    """Print each model with its size; flags that the trainer refuses end the process, with status 2."""
    for job in jobs:
        found = facts_of(command.parse(SyntheticConfig, job.arguments, prog=PROG))
        size = found["state_size"]
        state = "no state" if size is None else f"{4 * size:,} bytes of state"
        print(f"{job.family}, {job.setting}: {found['parameters']:,} parameters, {state}")
    print(f"{len(jobs)} models, {jobs[0].flags['epochs']} epochs each", flush=True)


def _expect_laws(job: Job) -> None:
    """Check the laws of a mixer of another package at the job's width; ValueError: it breaks one."""
    name, options = parse_mixer("mixer", job.model)
    mixer = class_of(ALIASES.get(name, name))
    if mixer.__module__.startswith("based_jax."):
        return
    print(f"checking the laws of {job.model}, which takes seconds", file=sys.stderr)
    try:
        check_mixer(mixer, d_model=job.flags["d_model"], **options)
    except AssertionError as error:
        raise ValueError(" ".join(str(error).split())[:300]) from error


def _study(options: Options, epochs: int) -> Study:
    """Return the study of the papers' figure, or one without their points if the task is not MQAR."""
    data = ABOUT[options.scale].partition(": ")[2] if options.task == "mqar" else f"Task {options.task}"
    about, base = {options.scale: f"{data}, {epochs} epochs"}, mqar_tradeoff.STUDY
    if options.task == "mqar":
        return dataclasses.replace(base, name="compare", about=about, notes=_NOTES)

    def panels(rows: Rows, scale: str) -> list[Panel]:
        ours = lines(best(rows), state_bytes, frontier=True)
        return [Panel(f"trained here, --scale {scale}", lines=ours, **STATE_AXIS)]

    return Study("compare", base.title, "Zoology's code", {}, about, panels, _NOTES)


def _write_cards(out: Path, jobs: set[str]) -> None:
    """Write a recall card of the best model of each line."""
    rows = sorted(best(read(out / "results.jsonl")), key=lambda row: row["accuracy"])
    for family, row in {row["family"]: row for row in rows if row["job"] in jobs}.items():
        write_recall_card(out / "cards", recall_card(out / "runs" / row["job"] / "model", name=family))
        print(f"recall card of {family}: {out / 'cards' / 'index.html'}", flush=True)


if __name__ == "__main__":
    command.run(PROG, main)
