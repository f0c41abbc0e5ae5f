"""Compare mixers by recall and state: ``based-jax compare my_package.mixer based attention``.

A mixer is a name of `based_jax.mixers.names()`, a paper's name such as based, or the path of any module,
`my_package.mixer:MyMixer`, with options as in `based:feature_dim=8,num_heads=2`. Each is trained at several
widths, and its points make a line of the figure; the same mixer with other options adds points to its line.
Mixers from outside the library are first checked by `based_jax.testing.check_mixer`.

The output directory gets figure.png (recall against the size of the state, the papers' models next to yours),
index.html (the figure with sortable tables), cards/index.html (a recall card of each line's best model),
results.jsonl (one object per model) and runs/ (weights and logs). The same command continues, and with more
mixers or widths it trains these only.
"""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro

from based_jax import command
from based_jax.compare.plan import WIDTHS, Times, epochs_within, jobs_of, measure, sizes
from based_jax.directory_lock import sole_writer
from based_jax.evals.card.recall_card import recall_card
from based_jax.evals.card.store import write_recall_card
from based_jax.experiments import mqar_tradeoff
from based_jax.experiments.based_data import ABOUT
from based_jax.experiments.job import Job
from based_jax.experiments.mixer_lines import expect_contract
from based_jax.experiments.panels import STATE_AXIS, Panel, lines, state_bytes
from based_jax.experiments.results import best, read
from based_jax.experiments.slots import find_slots
from based_jax.experiments.study import Flags, Rows, Study, train_study
from based_jax.files import read_json
from based_jax.validate import expect, expect_ranges

PROG = "based-jax compare"


@dataclasses.dataclass(frozen=True)
class Options:
    """Train mixers on recall, and draw what they recall against the size of their state."""

    mixers: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MIXER ...")]
    """names or my_package.mixer:MyMixer; options as in based:feature_dim=8,num_heads=2"""
    out: Path = Path("runs/compare")
    """directory of the comparison"""
    task: str = "mqar"
    """mqar, or a task of based-jax experiments tasks, such as forgetting or single_query"""
    scale: Literal["smoke", "cpu", "paper"] = "cpu"
    """data of the studies: cpu has 4 to 16 pairs in up to 64 tokens, smoke 2 and 4 pairs in 32; paper is for
    GPUs"""
    widths: str | None = None
    """widths of the models, a point of each line; default: 32,64 (smoke: 16,32; paper: 64,128,256)"""
    epochs: int | None = None
    """passes over the training examples; default: the study's (cpu: 6)"""
    minutes: float | None = None
    """time for all models instead of --epochs: as many epochs as fit, by a measurement before"""
    learning_rates: str | None = None
    """learning rates, of which the best counts; default: the study's (cpu: 0.01)"""
    seeds: str = "0"
    """seeds, over which accuracies are averaged"""
    at_once: int | None = None
    """number of processes at once; default: one per accelerator, or two on a CPU"""
    retry: bool = False
    """train models again that failed completely (out of memory, full disk)"""
    dry_run: bool = False
    """print the models, their sizes and the measured time, and train nothing"""

    def __post_init__(self) -> None:
        expect(len(self.mixers) > 0, "mixers", self.mixers, "at least one, such as based")
        expect_ranges(self, 1, "epochs", "at_once")
        both = self.epochs is not None and self.minutes is not None
        expect(not both, "minutes", self.minutes, "none with --epochs")

    def jobs(self, epochs: int | None) -> list[Job]:
        """Return a job for each mixer and width; None for the epochs of the scale."""
        widths = WIDTHS[self.scale]
        if self.widths is not None:
            is_fine = all(width.strip().isdigit() for width in self.widths.split(","))
            expect(is_fine, "widths", self.widths, "numbers such as 32,64")
            widths = tuple(int(width) for width in self.widths.split(","))
        given = {"epochs": epochs, "learning_rates": self.learning_rates}
        more = {"seeds": self.seeds, **{name: value for name, value in given.items() if value is not None}}
        return jobs_of(self.mixers, self.task, self.scale, widths, more)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a model failed, 128 + n after signal n."""
    options = command.parse(Options, argv, prog=PROG)
    jax.config.update("jax_platforms", "cpu")  # the trainers use the accelerators
    if options.dry_run:
        _planned(options)
        return 0
    with sole_writer(options.out):
        jobs = _planned(options)
        flags = {name: getattr(options, name) for name in ("scale", "out", "at_once", "retry")}
        facts = {name: jobs[0].flags[name] for name in ("epochs", "learning_rates", "seeds")}
        typed = shlex.join([PROG, *(sys.argv[2:] if argv is None else argv)]).replace(f"'{PROG}'", PROG)
        study = _study(options, typed)
        status = train_study(study, Flags(**flags), jobs, options.out, {"task": options.task, **facts})
        if status < 128 and options.task == "mqar":
            _write_cards(options.out, {job.name for job in jobs})
        return status


def _planned(options: Options) -> list[Job]:
    """Return the jobs with their epochs, and print them; those of a directory keep its number of epochs."""
    jobs, slots = options.jobs(options.epochs), None
    texts, times = [sizes(job) for job in jobs], list[Times]()
    record = options.out / "study.json"
    epochs = options.epochs or (read_json(record).get("epochs") if record.exists() else None)
    if options.dry_run or (options.minutes is not None and epochs is None):
        if not options.dry_run:
            expect_contract(jobs)
        slots = find_slots(options.at_once)
        print(f"measuring {len(jobs)} models, {len(slots)} at once", file=sys.stderr)
        times = measure(jobs, slots)
        if options.minutes is not None and epochs is None:
            epochs = epochs_within(options.minutes, times, len(slots))
    jobs = options.jobs(epochs)
    epochs = jobs[0].flags["epochs"]
    for index, text in enumerate(texts):
        print(text + (f", about {times[index].total(epochs) / 60:.1f} min" if times else ""))
    end = ""
    if slots:
        minutes = sum(each.total(epochs) for each in times) / len(slots) / 60
        end = f": about {minutes:.0f} min, {len(slots)} at once"
    print(f"{len(jobs)} models, {epochs} epochs each{end}")
    return jobs


def _study(options: Options, typed: str) -> Study:
    about = (
        ABOUT[options.scale] if options.task == "mqar" else f"Task {options.task}, --scale {options.scale}"
    )

    def panels(rows: Rows, scale: str) -> Sequence[Any]:
        if options.task == "mqar":
            return mqar_tradeoff.STUDY.panels(rows, scale)
        ours = lines(best(rows), state_bytes, frontier=True)
        return [Panel(f"trained here, --scale {scale}", lines=ours, **STATE_AXIS)]

    return Study(
        name="compare",
        title="Recall against the size of the state",
        source="As in Based, Figure 2",
        jobs={},
        about={options.scale: about},
        panels=panels,
        notes=("A line joins the models that recall more than every smaller one of their mixer.",),
        command=typed,
    )


def _write_cards(out: Path, jobs: set[str]) -> None:
    """Write a recall card of the best model of each line."""
    rows = sorted(best(read(out / "results.jsonl")), key=lambda row: row["accuracy"])
    for family, row in {row["family"]: row for row in rows if row["job"] in jobs}.items():
        print(f"recall card of {family}", file=sys.stderr)
        write_recall_card(out / "cards", recall_card(out / "runs" / row["job"] / "model", name=family))
        print(f"{family}: {out / 'cards' / 'index.html'}")


if __name__ == "__main__":
    command.run(PROG, main)
