"""`train`: measure tokens per second in training a small Based and a Transformer++, in JAX and in torch."""

from dataclasses import dataclass
from typing import Annotated, Any

from based_jax.models import param_count
from based_jax.training.devices.host_memory import keep_freed_memory
from based_jax.validate import expect
from benchmarks.flags import comma_list
from benchmarks.models import training, training_tables
from benchmarks.models.train_workload import TORCH, VARIANTS, WINDOW, Sizes, Workload

MODELS = ("based", "transformer")


@dataclass(frozen=True)
class Train(training.Flags, Sizes):
    """Training throughput and memory of small language models, on CPU in float32.

    Whole steps of `based-jax train lm` (loss, gradients, clipping, AdamW) on random tokens, with its ways to
    save memory, and the Transformer++ in torch, if that is installed. All candidates of a model take turns.
    JAX and torch have to compute the same losses from the same parameters, or the exit status is 1.
    """

    models: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME")] = MODELS
    """based, transformer, or both."""
    variants: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = tuple(VARIANTS)
    """Ways to train in JAX."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, 1 if JAX and torch disagree, 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value, or JAX does not compute on one CPU.
        """
        keep_freed_memory()
        sizes = {
            name: getattr(self, name) for name in ("d_model", "vocab_size", "length", "batch_size", "steps")
        }
        self.check(sizes, {"--models": (self.models, MODELS), "--variants": (self.variants, tuple(VARIANTS))})
        expect(
            self.length % WINDOW == 0, "--length", self.length, f"a multiple of the window of {WINDOW} keys"
        )
        expect(self.d_model % 64 == 0, "--d-model", self.d_model, "a multiple of the heads' 64 channels")
        return training.run(self.plan(sizes), self, command)

    def plan(self, sizes: dict[str, int]) -> training.Plan:
        """Return what to train."""
        architectures = {name: self.architecture(name) for name in self.models}
        models = {
            name: {"schedule": config.schedule, "parameters": param_count(config)}
            for name, config in architectures.items()
        }

        return training.Plan(
            training_tables.TRAIN,
            {**sizes, "models": models},
            self.models,
            self.length,
            lambda model: Workload(self, model),
            {name: VARIANTS[name] for name in self.variants},
            self._row,
            {"transformer": TORCH},
        )

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Add the quantities of training to a case of the study: a call is `steps` steps."""
        step = row["seconds"] and row["seconds"] / self.steps
        speed = step and self.batch_size * self.length / step
        return {**row, "step_seconds": step, "tokens_per_second": speed}
