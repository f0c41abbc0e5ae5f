"""The loop around the step: data, logging, evaluation, checkpoints, stopping. Knows nothing of the task."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import jax

from based_jax.training.bad_loss import BadLoss, BadLossConfig, is_bad
from based_jax.training.devices import hosts
from based_jax.training.run.checkpoints import Checkpoints
from based_jax.training.run.metrics import open_writer
from based_jax.training.run.signals import StopRequest
from based_jax.training.run.trackers import TrackConfig
from based_jax.training.step import Batch, Programs, TrainState
from based_jax.validate import expect_ranges


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """When to do what, in steps; 0 means never."""

    steps: int
    log_every: int
    eval_every: int
    checkpoint_every: int
    keep: int

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "steps", "log_every", "keep")
        expect_ranges(self, 0, "eval_every", "checkpoint_every")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: TrainState
    step: int
    stopped_by: signal.Signals | None  # None if all steps were made
    held_out: dict[str, float]  # metrics of the last step's evaluation; empty if there was none


def fit(
    programs: Programs,
    key: jax.Array,
    data: grain.DatasetIterator[Any],
    workdir: Path,
    config: LoopConfig,
    *,
    describe: Callable[[dict[str, float], int], dict[str, float]],
    evaluate: Callable[[TrainState], dict[str, float]],
    bad_losses: BadLossConfig | None = None,
    tracking: TrackConfig | None = None,
) -> Outcome:
    """Train from the newest checkpoint below `workdir` (or from scratch) to `config.steps`.

    A run that was killed and started again makes the same losses as one that was not: parameters, optimizer
    and data position are restored together and nothing else has a memory.

    Args:
        key: initialises the parameters of a new run.
        data: batches; its position is part of the checkpoint.
        workdir: where metrics and checkpoints live; of several processes, all have it.
        describe: turns a step's metrics and the tokens in them into what is logged.
        evaluate: held-out metrics of a state.
        bad_losses: what follows a bad step; default: the end. All but the default needs an optimizer that is
            guarded (`based_jax.training.bad_loss.guard`).
        tracking: services that get the metrics too; default: none.

    Raises:
        BadLoss: a loss or gradient norm was not finite, or spiked, too often; no checkpoint of what it did.
        ValueError: no checkpoint can be read, or it is of another model or other data.
        SaveFailed: a checkpoint cannot be written.
    """
    policy = bad_losses or BadLossConfig()
    beginning = data.get_state()
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(workdir, config.keep))
        saved = step = checkpoints.newest_intact(programs.abstract_state) or 0
        writer = stack.enter_context(open_writer(workdir, config.steps, step, tracking))
        stop = StopRequest()

        def where() -> str:
            return f"{checkpoints.directory / str(saved)}" if saved else "none, the run is young"

        def load() -> tuple[TrainState, dict[str, Any]]:
            if saved:
                return checkpoints.restore(saved, programs.abstract_state)
            return programs.init(key), beginning

        def check(made: _Made) -> dict[str, float]:
            """The step's metrics, once they are there."""
            values = {name: float(value) for name, value in jax.device_get(made.metrics).items()}
            if not is_bad(values):
                return values
            what = f"step {made.step}: loss {values['loss']}, gradient norm {values['grad_norm']}"
            in_a_row = values.get("bad_in_a_row", 0)
            if policy.on_bad_loss == "rollback" and rollbacks < policy.max_bad_losses:
                raise _RollBack(what, made.position)
            if policy.on_bad_loss == "skip" and in_a_row <= policy.max_bad_losses:
                writer.say(f"{what}; the update is skipped, {in_a_row:g} in a row")
                return values
            checkpoints.wait()
            after = {"skip": f" after {in_a_row:g} in a row", "rollback": f" after {rollbacks} rollbacks"}
            stopped = f"stopped{after.get(policy.on_bad_loss, '')}"
            raise BadLoss(f"{what}; {stopped}. Last good checkpoint: {where()}")

        with writer.phase(f"reading checkpoint {saved}" if saved else "initialising the parameters"):
            state, position = load()
        data.set_state(position)
        if step:
            writer.say(f"resuming at step {step} from {where()}")
        last_log, rollbacks, stopped_by, held_out = (step, time.perf_counter()), 0, 0, {}
        first: int | None = step + 1
        waiting: _Made | None = None
        while step < config.steps and not stopped_by:
            step += 1
            batch = next(data)
            placed = programs.place_batch(batch)
            asked = hosts.greatest(lambda: int(stop.signal or 0))
            compiling = writer.phase("compiling the training step", "10 to 60 s")
            compiles = step == first
            with compiling if compiles else contextlib.nullcontext():
                state, metrics = programs.train(state, placed)
            if compiles:  # until now there was nothing to lose, and a signal ended the process at once
                stack.enter_context(stop)
                first = None
            try:
                # The step before is read only now, while this one runs: the device never waits for Python.
                if waiting is not None:
                    check(waiting)
                waiting = _Made(step, metrics, data.get_state())
                # Read once: a signal that comes while this step is logged ends the next one, which is saved.
                stopped_by = asked()
                final = step == config.steps or stopped_by > 0
                at_end = final and config.eval_every > 0 and not stopped_by
                evaluates = _due(step, config.eval_every) or at_end
                saves = _due(step, config.checkpoint_every) or final
                writer.tick(step)
                if not (_due(step, config.log_every) or evaluates or saves):
                    if compiles:  # speeds are those of the steps that follow
                        jax.block_until_ready(metrics)
                        last_log = (step, time.perf_counter())
                    continue
                values, waiting = check(waiting), None
            except _RollBack as bad:
                checkpoints.wait()
                (state, _), step, waiting, stopped_by = load(), saved, None, 0
                # On after the batch that did it: what was drawn since the checkpoint is not seen again.
                data.set_state(bad.position)
                rollbacks += 1
                writer.rewind(step)
                writer.say(f"{bad}; back to step {step} ({where()}), and on behind that step's batch")
                last_log = (step, time.perf_counter())
                continue
            checkpoints.check()
            elapsed = time.perf_counter() - last_log[1]
            # Counted where the rows are made; every process makes as many.
            own = int(batch["mask"].sum()) if "mask" in batch else batch["targets"].size
            tokens = own * (len(placed["targets"]) // len(batch["targets"]))
            values["tokens_per_second"] = tokens * (step - last_log[0]) / elapsed
            logged = describe(values, tokens)
            if "bad_losses" in values:
                logged["bad_losses"] = values["bad_losses"]
            held_out = {}
            if evaluates:
                with writer.phase("evaluating on held-out data"):
                    held_out = evaluate(state)
            if _due(step, config.log_every) or evaluates or final:
                writer.write(step, logged | held_out)
            last_log = (step, time.perf_counter())
            if saves and step > saved:
                checkpoints.save(step, state, data.get_state())
                saved, rollbacks = step, 0
                writer.say(f"step {step}  checkpoint {workdir / 'checkpoints' / str(step)}")
        checkpoints.wait()
        ended_by = signal.Signals(stopped_by) if stopped_by else None
        if ended_by is not None:
            writer.say(f"{ended_by.name}: saved step {step} in {where()}; --resume continues from there")
    return Outcome(state, step, ended_by, held_out)


@dataclasses.dataclass(frozen=True)
class _Made:
    """A step that was started: its metrics are still being computed."""

    step: int
    metrics: Any
    position: dict[str, Any]  # of the data, after the step's batch


class _RollBack(Exception):
    def __init__(self, what: str, position: dict[str, Any]):
        super().__init__(what)
        self.position = position


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def mean_loss(programs: Programs, state: TrainState, batches: Iterator[Batch]) -> tuple[float, float]:
    """Summed cross-entropy (nats) and number of targets over held-out batches."""
    total, count = 0.0, 0.0
    for batch in batches:
        losses, targets = programs.evaluate(state.params, programs.place_batch(batch))
        total, count = total + float(losses), count + float(targets)
    return total, count
