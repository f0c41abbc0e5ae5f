"""Parts of `benchmarks.models.startup`: one measurement, in a process of its own."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

STAGES = ("import", "trace", "lower", "compile", "run")
"""Parts of a measurement: tracing to a jaxpr, lowering to StableHLO, XLA, and the first call."""

Stages = dict[str, tuple[float, float]]
"""Stage -> seconds on the clock, and of all processors."""

BATCH_SIZE = 16
"""Rows of the training step, the default of `train lm`."""


def measure(case: str) -> Stages:
    """Run a case in a new process without the persistent compilation cache.

    Raises:
        RuntimeError: the process has failed.
    """
    command = [sys.executable, "-m", "benchmarks.models.startup_run", case]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{case} ended with status {done.returncode}: {done.stderr[-500:]}")
    return {stage: tuple(times) for stage, times in json.loads(done.stdout).items()}


def run(case: str) -> Stages:
    """Measure a case in this process."""
    import jax

    stages: Stages = {}
    with _stage(stages, "import"):
        import based_jax as bj

        _ = bj.LanguageModel  # public names are imported on first use
    if case == "import":
        return stages
    stages.clear()
    jax.block_until_ready(jax.random.key(0))  # starts the backend
    kind, _, preset = case.partition(" ")
    if kind == "init":
        model = bj.LanguageModel(bj.presets.get(preset))
        return _stages(jax.jit(model.init), jax.random.key(0), jax.numpy.zeros((1, 1), int))
    config = bj.presets.get(preset)
    return _first_step(config, BATCH_SIZE, config.max_length)


def _first_step(config: Any, rows: int, length: int) -> Stages:
    """Measure the first training step of a model, from its initial state."""
    import jax
    import jax.numpy as jnp

    from based_jax.models import LanguageModel
    from based_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
    from based_jax.training.step import build_programs

    settings = OptimizerConfig()
    optimizer, schedule = make_optimizer(settings, 100), learning_rate_schedule(settings, 100)
    programs = build_programs(LanguageModel(config), optimizer, schedule)
    state = jax.block_until_ready(programs.init(jax.random.key(0)))
    tokens = jnp.zeros((rows, length), jnp.int32)
    return _stages(programs.train, state, {"inputs": tokens, "targets": tokens})


def _stages(function: Any, *args: Any) -> Stages:
    """Trace, lower, compile and call a jitted function."""
    import jax

    stages: Stages = {}
    with _stage(stages, "trace"):
        traced = function.trace(*args)
    with _stage(stages, "lower"):
        lowered = traced.lower()
    with _stage(stages, "compile"):
        compiled: Callable[..., Any] = lowered.compile()
    with _stage(stages, "run"):
        jax.block_until_ready(compiled(*args))
    return stages


@contextlib.contextmanager
def _stage(stages: Stages, name: str) -> Iterator[None]:
    wall, processor = time.perf_counter(), time.process_time()
    yield
    stages[name] = time.perf_counter() - wall, time.process_time() - processor


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
