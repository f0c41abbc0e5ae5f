"""Replay one step of a run: ``based-jax train replay --workdir runs/a --step 1234``.

Starts from the newest checkpoint before the step (from scratch if there is none) and repeats the run's steps
up to it; on the same machine this gives bitwise identical numbers. Prints the step's loss, the norms of all
parameters and of their updates, and the text of the batch. Changes nothing in the run's directory.
"""

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from based_jax import command
from based_jax.training.bad_loss import is_bad
from based_jax.training.commands import lm
from based_jax.training.devices import hosts
from based_jax.training.run.checkpoints import Checkpoints, say_once
from based_jax.training.run.directory import expect_same_data, parse_run
from based_jax.training.run.metrics import read_metrics
from based_jax.training.step import TrainState
from based_jax.typing import Params
from based_jax.validate import expect

PROG = "based-jax train replay"


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """Replay one step of a language-model run and inspect it."""

    workdir: Path
    """run directory"""
    step: int
    """the step to replay, counted from 1"""
    rows: int = 2
    """rows of the batch to print"""
    mesh: str | None = None
    """another mesh than the run's, e.g. data=2; the order of summation changes the last bits"""

    def __post_init__(self) -> None:
        expect(self.step >= 1, "step", self.step, "at least 1")
        expect(self.rows >= 0, "rows", self.rows, "at least 0")


@dataclasses.dataclass(frozen=True)
class Replay:
    """A replayed step."""

    start: int  # step of the checkpoint that it started from; 0 is the initialisation
    metrics: dict[str, float]  # of the replayed step
    norms: dict[str, tuple[tuple[int, ...], float, float]]  # parameter -> shape, norm before, norm of update
    texts: list[str]  # first rows of the batch
    logged: dict[str, Any] | None  # the step's line in metrics.jsonl, if it has one

    @property
    def differences(self) -> dict[str, tuple[float | None, float]]:
        """Return the metrics that differ in any bit from metrics.jsonl: (logged, replayed)."""
        if self.logged is None:
            return {}
        pairs = {name: (self.logged[name], self.metrics[name]) for name in ("loss", "grad_norm")}
        return {
            name: (was, now)
            for name, (was, now) in pairs.items()
            if was != (now if math.isfinite(now) else None)  # the writer stores non-finite values as null
        }


def replay(config: ReplayConfig) -> Replay:
    """Replay the step.

    Raises:
        ValueError, OSError: no such run or step, or its data have changed or are missing.
    """
    expect((config.workdir / "config.json").is_file(), "workdir", str(config.workdir), "a run's directory")
    run = parse_run(lm.LMConfig, ["--workdir", str(config.workdir), "--resume"], lm.PROG)
    run = dataclasses.replace(run, workdir=config.workdir, mesh=config.mesh or run.mesh)
    expect(config.step <= run.steps, "step", config.step, f"at most the run's {run.steps}")
    hosts.join(run.hosts)
    parts = lm.assemble(run)
    expect_same_data(run, parts.fingerprint())
    copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))  # the step donates its state
    programs, batches, beginning = parts.programs, parts.batches, parts.batches.get_state()
    checkpoints = Checkpoints(config.workdir, read_only=True)
    start = checkpoints.intact_before(config.step) or 0

    def load() -> tuple[TrainState, dict[str, Any]]:
        if start:
            return checkpoints.restore(start, programs.abstract_state)
        return programs.init(jax.random.key(run.seed)), beginning

    (state, position), step, rollbacks = load(), start, 0
    batches.set_state(position)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replaying", total=config.step - start)
        while True:
            batch, step = next(batches), step + 1
            before = copy(state.params) if step == config.step else None
            state, measured = programs.train(state, programs.place_batch(batch))
            metrics = {name: float(value) for name, value in jax.device_get(measured).items()}
            if before is not None:
                break
            if is_bad(metrics) and run.bad_losses.on_bad_loss == "rollback":
                # As in the run: return to the checkpoint and continue with the batch after this one.
                rollbacks += 1
                expect(rollbacks <= run.bad_losses.max_bad_losses, "step", config.step, f"at most {step}")
                (state, _), step = load(), start
            progress.update(task, completed=step - start)
    lines = read_metrics(config.workdir / "metrics.jsonl")
    return Replay(
        start,
        metrics,
        _norms(before, state.params),
        [parts.tokenizer.decode(row) for row in batch["inputs"][: config.rows]],
        next((line for line in lines if line["step"] == config.step), None),
    )


def _norms(before: Params, after: Params) -> dict[str, tuple[tuple[int, ...], float, float]]:
    @jax.jit
    def measure(before: Params, after: Params) -> Any:
        return jax.tree.map(lambda a, b: (jnp.linalg.norm(a), jnp.linalg.norm(b - a)), before, after)

    norms = jax.device_get(measure(before, after))
    shapes = jax.tree_util.tree_leaves_with_path(before["params"])
    pairs = jax.tree.leaves(norms["params"], is_leaf=lambda node: isinstance(node, tuple))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (leaf.shape, float(norm), float(change))
        for (path, leaf), (norm, change) in zip(shapes, pairs, strict=True)
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if the numbers differ from metrics.jsonl."""
    say_once()
    config = command.parse(ReplayConfig, argv, prog=PROG)
    found = replay(config)
    start = f"checkpoint {found.start}" if found.start else "the initialisation"
    print(f"step {config.step}, replayed from {start}")
    for name, value in found.metrics.items():
        print(f"{name} {value!r}")
    table = Table("parameter", "shape", "norm", "norm of the update")
    for name, (shape, norm, change) in found.norms.items():
        table.add_row(name, str(shape), f"{norm:.6g}", f"{change:.6g}")
    Console(width=120).print(table)
    for number, text in enumerate(found.texts):
        print(f"row {number}: {text!r}")
    if found.logged is None:
        print("metrics.jsonl has no line of this step to compare with")
        return 0
    for name, (was, now) in found.differences.items():
        print(f"{PROG}: {name} was {was!r} and is {now!r} now", file=sys.stderr)
    if not found.differences:
        print("loss and grad_norm are those of metrics.jsonl, bit for bit")
    return 1 if found.differences else 0
