"""`mqar`: measure training examples per second: learning rates one by one and many at once."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from based_jax import mixers
from based_jax.models.backbones import ALIASES
from based_jax.validate import expect
from benchmarks.flags import comma_list
from benchmarks.models import training, training_tables
from benchmarks.models.mqar_workload import Recipe, Workload


@dataclass(frozen=True)
class Mqar(training.Flags, Recipe):
    """Training throughput of the MQAR sweep, on CPU in float32, with AdamW.

    The papers' two-layer models: the sweep's own program with one learning rate, so that models train one
    after another, and with more of them at once. All candidates of a mixer take turns. Compile times are
    separate: a sweep compiles once for any number of learning rates.
    """

    samples: int = 7
    """Timed calls per candidate; the table shows their median and quartile range."""
    mixers: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = ("attention", "based")
    """Mixers of the second layer."""
    vmapped_runs: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (1, 2, 4)
    """Numbers of learning rates trained at once; 1 is one by one."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or JAX does not compute on one CPU.
        """
        counts = {name: getattr(self, name) for name in ("d_model", "batch_size", "steps")}
        known = (*ALIASES, *mixers.names())
        for value in self.vmapped_runs:
            expect(value >= 1, "--vmapped-runs", value, "at least 1")
        expect(0 <= self.dropout < 1, "--dropout", self.dropout, "from 0 to below 1")
        expect(0 <= self.weight_decay < math.inf, "--weight-decay", self.weight_decay, "at least 0")
        self.check(counts, {"--mixers": (self.mixers, known), "--vmapped-runs": (self.vmapped_runs, ())})
        _ = self.task, [self.architecture(name) for name in self.mixers]
        return training.run(self.plan(), self, command)

    def plan(self) -> training.Plan:
        """Return what to train."""
        sizes = ("d_model", "vocab_size", "length", "pairs", "batch_size", "weight_decay", "dropout", "steps")
        settings = {name: getattr(self, name) for name in (*sizes, "mixers")}
        counts = sorted(self.vmapped_runs)
        labels = {count: f"{count} learning rates at once" if count > 1 else "one by one" for count in counts}

        return training.Plan(
            training_tables.MQAR,
            settings | {"vmapped_runs": counts},
            self.mixers,
            self.length,
            lambda mixer: Workload(self, mixer),
            {f"jax_{count}": (f"based_jax, {label}", count) for count, label in labels.items()},
            self._row,
        )

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Add the quantities of training to a case of the study: a call is `steps` steps."""
        models = int(row["candidate"].removeprefix("jax_"))
        step = row["seconds"] and row["seconds"] / self.steps
        each = step and self.batch_size / step
        return {
            "models": models,
            **row,
            "step_seconds": step,
            "examples_per_second": each and models * each,
            "examples_per_second_per_model": each,
        }
