"""The loop around the step: data, logging, evaluation, checkpoints, stopping. Knows nothing of the task."""

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import jax

from based_jax.validate import expect
from train.checkpoints import Checkpoints
from train.metrics import MetricWriter
from train.signals import StopRequest
from train.step import Batch, Programs, TrainState


class NonFiniteLoss(ValueError):
    """The loss or its gradient became NaN or infinite."""


class DataIterator(Protocol):
    """Endless batches whose position can be read and set."""

    def __next__(self) -> Any: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """When to do what, in steps; 0 means never."""

    steps: int
    log_every: int
    eval_every: int
    checkpoint_every: int
    keep: int

    def __post_init__(self) -> None:
        expect(self.steps >= 1, "steps", self.steps, "at least 1")
        expect(self.log_every >= 1, "log_every", self.log_every, "at least 1")
        expect(self.eval_every >= 0, "eval_every", self.eval_every, "at least 0")
        expect(self.checkpoint_every >= 0, "checkpoint_every", self.checkpoint_every, "at least 0")
        expect(self.keep >= 1, "keep", self.keep, "at least 1")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: TrainState
    step: int
    stopped_by: signal.Signals | None
    """None if all steps were made"""


def fit(
    programs: Programs,
    key: jax.Array,
    data: DataIterator,
    workdir: Path,
    config: LoopConfig,
    *,
    describe: Callable[[dict[str, float], int], dict[str, float]],
    evaluate: Callable[[TrainState], dict[str, float]],
) -> Outcome:
    """Train from the newest checkpoint below `workdir` (or from scratch) to `config.steps`.

    A run that was killed and started again makes the same losses as one that was not: parameters, optimizer
    and data position are restored together and nothing else has a memory.

    Args:
        programs: compiled init, step and evaluation.
        key: initialises the parameters of a new run.
        data: batches; its position is part of the checkpoint.
        workdir: where metrics and checkpoints live.
        describe: turns a step's metrics and the tokens in them into what is logged.
        evaluate: held-out metrics of a state.

    Raises:
        NonFiniteLoss: loss or gradient norm is NaN or infinite; no checkpoint of that state is written.
    """
    checkpoints = Checkpoints(workdir, config.keep)
    start = checkpoints.latest_step or 0
    if start:
        state, position = checkpoints.restore(start, programs.abstract_state)
        data.set_state(position)
    else:
        state = programs.init(key)
    saved = start

    def where() -> str:
        return f"{checkpoints.directory / str(saved)}" if saved else "none, the run is young"

    def check(step: int, metrics: Any) -> dict[str, float]:
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not all(math.isfinite(values[name]) for name in ("loss", "grad_norm")):
            checkpoints.wait()
            raise NonFiniteLoss(
                f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}; stopped. "
                f"Last good checkpoint: {where()}"
            )
        return values

    def save(step: int) -> None:
        nonlocal saved
        if step > saved:
            checkpoints.save(step, state, data.get_state())
            saved = step

    with MetricWriter(workdir, config.steps, start) as writer, StopRequest() as stop:
        if start:
            writer.say(f"resuming at step {start} from {where()}")
        step, last_log = start, (start, time.perf_counter())
        waiting: tuple[int, Any, int] | None = None
        try:
            for step in range(start + 1, config.steps + 1):
                batch = next(data)
                state, metrics = programs.train(state, programs.place_batch(batch))
                # The step before is read only now, while this one runs: the device never waits for Python.
                if waiting is not None:
                    check(waiting[0], waiting[1])
                waiting = (step, metrics, int(batch["mask"].sum()))
                # Read once: a signal that comes while this step is logged ends the next one, which is saved.
                stopping = stop.signal is not None
                final = step == config.steps or stopping
                evaluates = _due(step, config.eval_every) or (
                    final and config.eval_every > 0 and not stopping
                )
                saves = _due(step, config.checkpoint_every) or final
                if _due(step, config.log_every) or evaluates or saves:
                    values = check(step, metrics)
                    elapsed = time.perf_counter() - last_log[1]
                    tokens = waiting[2] * (step - last_log[0])
                    values["tokens_per_second"] = tokens / elapsed
                    logged = describe(values, waiting[2])
                    if evaluates:
                        logged |= evaluate(state)
                    if _due(step, config.log_every) or evaluates or final:
                        writer.write(step, logged)
                    last_log = (step, time.perf_counter())
                else:
                    writer.tick(step)
                if saves:
                    save(step)
                if stopping:
                    break
        finally:
            checkpoints.close()
        if stop.signal is not None:
            writer.say(f"{stop.signal.name}: saved step {step} in {where()}; --resume continues from there")
    return Outcome(state, step, stop.signal)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def mean_loss(programs: Programs, state: TrainState, batches: Iterator[Batch]) -> tuple[float, float]:
    """Summed cross-entropy (nats) and number of targets over held-out batches."""
    total, count = 0.0, 0.0
    for batch in batches:
        losses, targets = programs.evaluate(state.params, programs.place_batch(batch))
        total, count = total + float(losses), count + float(targets)
    return total, count
