"""The training loop: data, logging, evaluation, checkpoints and stopping, for any task."""

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import jax

from based_jax.stop_request import StopRequest
from based_jax.training.devices import hosts
from based_jax.training.run.checkpoints import Checkpoints
from based_jax.training.run.metrics import open_writer
from based_jax.training.step import Batch, Programs, TrainState
from based_jax.validate import expect_ranges


class BadLoss(ValueError):
    """The loss, that of held-out data or the norm of the gradient was not finite."""


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """Intervals of logging, evaluation and checkpoints, in steps; 0 means never."""

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
    stopped_by: signal.Signals | None
    """None if all steps were completed"""
    held_out: dict[str, float]
    """metrics of the evaluation after the last step; empty if there was none"""


def fit(
    programs: Programs,
    key: jax.Array,
    data: grain.DatasetIterator[Any],
    workdir: Path,
    config: LoopConfig,
    *,
    describe: Callable[[dict[str, float], int], dict[str, float]],
    evaluate: Callable[[TrainState], dict[str, float]],
) -> Outcome:
    """Train from the newest checkpoint in `workdir` (or from scratch) to `config.steps`.

    A run that was killed and restarted has the same losses as an uninterrupted one: parameters, optimizer
    state and data position are restored together, and nothing else carries state between steps.

    Args:
        key: initialises the parameters of a new run.
        data: batches; its position is part of the checkpoint.
        workdir: directory of metrics and checkpoints, shared by all processes.
        describe: maps a step's metrics and its number of tokens to the logged values.
        evaluate: returns the held-out metrics of a state.

    Raises:
        BadLoss: a loss, held-out too, or gradient norm was not finite; the bad state is not saved.
        ValueError: no checkpoint can be read, or it belongs to another model or other data.
        SaveFailed: a checkpoint cannot be written.
    """
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(workdir, config.keep))
        saved = step = begin = checkpoints.newest_intact() or 0
        writer = stack.enter_context(open_writer(workdir, config.steps, step))
        stop = StopRequest()

        def where() -> str:
            return f"{checkpoints.directory / str(saved)}" if saved else "none yet"

        def expect_finite(number: int, **values: float) -> None:
            if not all(map(math.isfinite, values.values())):
                checkpoints.wait()
                what = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
                raise BadLoss(f"step {number}: {what}; stopped. Last good checkpoint: {where()}")

        def check(number: int, metrics: Any) -> dict[str, float]:
            """Wait for the metrics of a step, check them, and return them."""
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            expect_finite(number, loss=values["loss"], gradient_norm=values["grad_norm"])
            return values

        with writer.phase(f"reading checkpoint {saved}" if saved else "initialising the parameters"):
            state, position = (
                checkpoints.restore(saved, programs.abstract_state)
                if saved
                else (programs.init(key), data.get_state())
            )
        data.set_state(position)
        if step:
            writer.say(f"resuming at step {step} from {where()}")
        last_log, stopped_by, held_out = (step, time.perf_counter()), 0, {}
        waiting: tuple[int, Any] | None = None
        while step < config.steps and not stopped_by:
            step += 1
            batch = next(data)
            placed = programs.place_batch(batch)
            asked = hosts.greatest(lambda: int(stop.signal or 0))
            compiling = writer.phase("compiling the training step", "10 to 60 s")
            compiles = step == begin + 1
            with compiling if compiles else contextlib.nullcontext():
                state, metrics = programs.train(state, placed)
            if compiles:  # before this a signal ends the process at once, as there is nothing to lose
                stack.enter_context(stop)
            # Read the previous step only now, while this one runs: the device never waits for Python.
            if waiting is not None:
                check(*waiting)
            waiting = step, metrics
            # Read once: a signal that arrives while this step is logged stops, and saves, the next one.
            stopped_by = asked()
            final = step == config.steps or stopped_by > 0
            at_end = step == config.steps and config.eval_every > 0
            evaluates = _due(step, config.eval_every) or at_end
            logs = _due(step, config.log_every) or evaluates or final
            saves = _due(step, config.checkpoint_every) or final
            writer.tick(step)
            if not (logs or saves):
                if compiles:  # measure speed from the next step on
                    jax.block_until_ready(metrics)
                    last_log = (step, time.perf_counter())
                continue
            values, waiting = check(*waiting), None
            checkpoints.check()
            elapsed = time.perf_counter() - last_log[1]
            # Counted on this process's own rows; every process has the same number of them.
            own = int(batch["mask"].sum()) if "mask" in batch else batch["targets"].size
            tokens = own * (len(placed["targets"]) // len(batch["targets"]))
            values["tokens_per_second"] = tokens * (step - last_log[0]) / elapsed
            logged = describe(values, tokens)
            held_out = {}
            if evaluates:
                with writer.phase("evaluating on held-out data"):
                    held_out = evaluate(state)
                expect_finite(step, held_out_loss=held_out.get("eval_loss", 0.0))
            if logs:
                writer.write(step, logged | held_out)
            last_log = (step, time.perf_counter())
            if saves:
                checkpoints.save(step, state, data.get_state())
                saved = step
                writer.say(f"step {step}  checkpoint {workdir / 'checkpoints' / str(step)}")
        checkpoints.wait()
        ended_by = signal.Signals(stopped_by) if stopped_by else None
        if ended_by is not None:
            writer.say(f"{ended_by.name}: saved step {step} in {where()}; --resume continues from there")
    return Outcome(state, step, ended_by, held_out)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def mean_loss(programs: Programs, state: TrainState, batches: Iterator[Batch]) -> tuple[float, float]:
    """Return the summed cross-entropy (nats) and the number of targets over held-out batches."""
    total, count = 0.0, 0.0
    for batch in batches:
        losses, targets = programs.evaluate(state.params, programs.place_batch(batch))
        total, count = total + float(losses), count + float(targets)
    return total, count
