"""Run a sweep: train the grid, test after every epoch, record each run once, stop, resume.

A run ends after the first epoch with a test accuracy above `stop_above`, after the last epoch, or at a
non-finite loss; then its record is written, and its weights in model/ if no run has a higher accuracy. The
grid continues for the others, and drops the ended runs once they are half of it.
"""

import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from based_jax.convert.model_card import ModelCard
from based_jax.convert.pretrained import save_pretrained
from based_jax.files import JsonLines
from based_jax.models import LanguageModel
from based_jax.models.classifier import AutoEncoder
from based_jax.stop_request import StopRequest
from based_jax.training.mqar.config import Run, SyntheticConfig
from based_jax.training.mqar.grid import Grid, VmappedRuns, data_seeds, load
from based_jax.training.run.checkpoints import Checkpoints
from based_jax.training.run.metrics import MetricWriter
from based_jax.validate import expect


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended."""

    records: list[dict[str, Any]]  # of ended runs, in the order of the grid
    stopped_by: signal.Signals | None  # None if all runs ended


class Scores(NamedTuple):
    """Test scores of one run, averaged over the labels of each example, then over the examples."""

    accuracy: float  # share of correct labels
    slices: dict[str, dict[str, float]]  # accuracy by a property of the tests: {"num_pairs": {"4": ...}, ...}
    eval_loss: float  # per label; nats for cross-entropy


_RECORD = {"learning_rate": float, "seed": int, "status": str, "steps": int, "epochs": float}
"""Required entries of each line of results.jsonl, an object per ended run, and their types."""


def _by_run(rows: Sequence[dict[str, Any]]) -> dict[Run, dict[str, Any]]:
    return {Run(row["learning_rate"], row["seed"]): row for row in rows}


def sweep(config: SyntheticConfig, facts: Mapping[str, Any]) -> Outcome:
    """Train a model for each learning rate and seed, all at once; resume the sweep in the directory, if any.

    `facts` are entries of every record. One pass over all training segments, in their order, is an epoch.

    Raises:
        ValueError: settings that a task rejects, or a directory whose records and checkpoint do not match.
    """
    records = JsonLines(config.workdir / "results.jsonl", _RECORD)
    ended = _by_run(records.rows)
    pending = [number for number, run in enumerate(config.runs) if run not in ended]
    stopped_by = None
    if pending:
        with Checkpoints(config.workdir, keep=1) as checkpoints:
            stopped_by = _Loop(config, records, facts, checkpoints).run(pending)
    ended = _by_run(records.rows)
    return Outcome([ended[run] for run in config.runs if run in ended], stopped_by)


_Losses = Mapping[int, float]
_Scores = Mapping[int, Scores]


class _Loop:
    """State of a sweep. Runs are indices into the grid: `vmapped` are in the state, `live` have not ended."""

    def __init__(
        self, config: SyntheticConfig, records: JsonLines, facts: Mapping[str, Any], checkpoints: Checkpoints
    ):
        self.config, self.records, self.facts, self.checkpoints = config, records, facts, checkpoints
        (train, test), self.runs = config.segments, config.runs
        self.seeds = config.rates_and_seeds[1]
        by_seed = [data_seeds(seed, len(train), len(test)) for seed in self.seeds]
        of_train, of_test = (zip(*seeds, strict=True) for seeds in zip(*by_seed, strict=True))
        rows, head = config.batch_size, train[0].label_vectors()
        parts = [load(task, seeds, rows=rows) for task, seeds in zip(train, of_train, strict=True)]
        model = (AutoEncoder if train[0].decodes_last else LanguageModel)(config.architecture)
        self.grid = Grid(model, parts[0].length, config.weight_decay, config.loss, head)
        # A test batch has at most as many tokens as the largest training batch.
        tokens = max(part.rows * part.length for part in parts)
        tests = [load(task, seeds, tokens=tokens) for task, seeds in zip(test, of_test, strict=True)]
        self.train, self.test = (
            [replace(part, batches=self.grid.replicate(part.batches)) for part in side]
            for side in (parts, tests)
        )
        self.epoch_steps = sum(part.steps for part in self.train)
        self.steps = config.epochs * self.epoch_steps

    def _start(self, pending: list[int]) -> None:
        """Start the `pending` runs, or restore them from the last checkpoint."""
        self.live, self.step = pending, self.checkpoints.newest_intact() or 0
        self.curves: list[list[list[float]]] = [[] for _ in self.runs]
        if self.step == 0:
            self.vmapped, seconds = self.grid.filled(pending), 0.0
            self.state = self.grid.init(self._arrays())
        else:
            position = self.checkpoints.position(self.step)
            self.vmapped, seconds = position["vmapped_runs"], position["seconds"]
            self.curves = position["curves"]
            directory, size = self.checkpoints.directory, len(self.vmapped)
            expected = f"a checkpoint of the {len(pending)} runs without a record in results.jsonl"
            is_pending = self.step < self.steps and set(pending) <= set(self.vmapped)
            expect(is_pending, "workdir", str(directory), expected)
            devices, expected = self.grid.mesh.size, f"a divisor of {size}, the models in {directory}"
            expect(size % devices == 0, "number of devices", devices, expected)
            self.state, _ = self.checkpoints.restore(self.step, self.grid.abstract(self._arrays()))
        self.began = time.perf_counter() - seconds

    def run(self, pending: list[int]) -> signal.Signals | None:
        """Train and test until all `pending` runs have ended or a signal requests a stop."""
        self._start(pending)
        self.writer = MetricWriter(self.config.workdir, self.steps, self.step)
        with self.writer, StopRequest() as stop:
            if self.step:
                self.writer.say(f"resuming {len(self.live)} runs at step {self.step} of {self.steps}")
            while self.live:
                losses, speed = self._train()
                is_epoch = self.step % self.epoch_steps == 0
                scores = self._test() if is_epoch else {}
                for number, score in scores.items():
                    self.curves[number].append([self.step, score.accuracy])
                self._log(losses, scores, speed)
                self._end(losses, scores)
                stopped_by = stop.signal  # read once, so that the loop ends only after a save
                if is_epoch or stopped_by is not None:
                    self._save()
                if stopped_by is not None and self.live:
                    saved = f"saved step {self.step} in {self.checkpoints.directory / str(self.step)}"
                    self.writer.say(f"{stopped_by.name}: {saved}; run again to continue")
                    return stopped_by
        return None

    def _train(self) -> tuple[dict[int, float], dict[str, float]]:
        """Train up to the next log line; return each run's mean loss and the speed of the whole grid."""
        epoch, start = divmod(self.step, self.epoch_steps)
        parts = iter(self.train)
        while start >= (part := next(parts)).steps:
            start -= part.steps
        stop = min(part.steps, start + self.config.log_every - self.step % self.config.log_every)
        clock = time.perf_counter()
        scale = self.config.schedule(epoch)
        self.state, losses = self.grid.train(self.state, self._arrays(), scale, part.batches, start, stop)
        losses = dict(zip(self.vmapped, np.asarray(losses).tolist(), strict=True))
        self.step += stop - start
        examples = part.examples_between(start, stop) * len(losses) / (time.perf_counter() - clock)
        return losses, {"examples_per_second": examples, "tokens_per_second": examples * part.length}

    def _test(self) -> dict[int, Scores]:
        arrays, params = self._arrays(), self.state.params
        sums = np.asarray(
            [self.grid.evaluate(params, arrays, part.batches) for part in self.test], np.float64
        )
        sizes = np.array([part.examples for part in self.test])
        members: dict[str, dict[str, list[int]]] = {}
        for number, part in enumerate(self.test):
            for key, value in part.slices.items():
                members.setdefault(key, {}).setdefault(str(value), []).append(number)

        def scores(index: int) -> Scores:
            loss, accuracy = (sums[:, index].sum(axis=0) / sizes.sum()).tolist()
            slices = {
                key: {
                    value: float(sums[of, index, 1].sum() / sizes[of].sum()) for value, of in values.items()
                }
                for key, values in members.items()
            }
            return Scores(accuracy, slices, loss)

        return {number: scores(self.vmapped.index(number)) for number in self.live}

    def _log(self, losses: _Losses, scores: _Scores, speed: Mapping[str, float]) -> None:
        """Log means over the live runs, the best accuracy, and each run's values."""
        live = [number for number in self.live if _is_finite(losses[number], scores.get(number))]
        if not live:
            return
        metrics = {"loss": float(np.mean([losses[number] for number in live])), **speed}
        metrics["epoch"] = self.step / self.epoch_steps
        if scores:
            metrics["eval_loss"] = float(np.mean([scores[number].eval_loss for number in live]))
            metrics["best_accuracy"] = max(scores[number].accuracy for number in live)
        shown = list(metrics)
        for number in live:
            metrics[f"loss/{self.runs[number].tag}"] = losses[number]
            if scores:
                metrics[f"accuracy/{self.runs[number].tag}"] = scores[number].accuracy
        self.writer.write(self.step, metrics, shown)

    def _end(self, losses: _Losses, scores: _Scores) -> None:
        """Record the runs that failed, passed `stop_above`, or completed their epochs."""
        for number in list(self.live):
            score = scores.get(number)
            is_above = score is not None and score.accuracy > self.config.stop_above
            values = {"loss": losses[number], **(score._asdict() if score else {})}
            status = "stopped" if is_above else "finished"
            if not _is_finite(losses[number], score):
                status, values = "failed", dict.fromkeys(("loss", *Scores._fields))
                self.writer.say(f"{self.runs[number]}: failed, no finite loss at step {self.step}")
            elif not is_above and self.step < self.steps:
                continue
            if score is not None and status != "failed":
                self._export(number, score.accuracy)
            epochs, seconds = self.step / self.epoch_steps, time.perf_counter() - self.began
            ends = {"epochs": epochs, "steps": self.step, "seconds": seconds, "curve": self.curves[number]}
            self.records.append(
                [{**self.facts, **self.runs[number]._asdict(), "status": status, **values, **ends}]
            )
            self.live.remove(number)

    def _export(self, number: int, accuracy: float) -> None:
        """Write the weights of an ended run in model/, unless a recorded run has at least this accuracy."""
        beaten = any((row.get("accuracy") or -1) >= accuracy for row in self.records.rows)
        if beaten or not isinstance(self.grid.model, LanguageModel):
            return
        index = self.vmapped.index(number)
        params = jax.tree.map(lambda leaf: np.asarray(leaf)[index], self.state.params)
        facts = {**self.runs[number]._asdict(), "steps": self.step, "test accuracy": accuracy}
        card = ModelCard(training=facts)
        save_pretrained(self.records.path.parent / "model", self.grid.model, params, card=card)

    def _save(self) -> None:
        """Drop the ended runs from the state if they are at least half of it, and write a checkpoint."""
        if 0 < len(live := self.grid.filled(self.live)) <= len(self.vmapped) // 2:
            self.state = self.grid.select(self.state, [self.vmapped.index(number) for number in live])
            self.vmapped = live
        seconds = time.perf_counter() - self.began
        position = {"vmapped_runs": self.vmapped, "seconds": seconds, "curves": self.curves}
        self.checkpoints.save(self.step, self.state, position)

    def _arrays(self) -> VmappedRuns:
        runs = [self.runs[number] for number in self.vmapped]
        return VmappedRuns(
            np.array([run.learning_rate for run in runs], np.float32),
            np.array([run.seed for run in runs], np.uint32),
            np.array([self.seeds.index(run.seed) for run in runs], np.int32),
        )


def _is_finite(loss: float, score: Scores | None) -> bool:
    return math.isfinite(loss) and (score is None or math.isfinite(score.eval_loss))
