"""Time the rows of `train` in torch: `torch_reference`'s model from the same parameters. Needs torch."""

import time
from collections.abc import Callable

from benchmarks.models.train_workload import Workload
from benchmarks.ops.candidates import Program
from benchmarks.torch_reference.training import make_step
from benchmarks.torch_reference.transformer import LanguageModel

LOGIT_ARRAYS = 4
"""Live float32 arrays of the logits' size at the peak of a step, to skip cases that cannot fit."""


def program(workload: Workload, compiled: bool) -> Program:
    """Return the timed program: `steps` steps. `torch.compile` compiles at the first one, which runs here."""
    step, sizes = _trainer(workload, compiled), workload.sizes
    begin = time.perf_counter()
    if compiled:
        step(0)
    logits = sizes.batch_size * sizes.length * workload.architecture.padded_vocab_size
    return Program(
        call=lambda: [step(index) for index in range(sizes.steps)],
        to_numpy=list,
        compile_seconds=time.perf_counter() - begin if compiled else None,
        needed_bytes=4 * LOGIT_ARRAYS * logits,
    )


def losses(workload: Workload, compiled: bool) -> list[float]:
    """Return the losses of the first `steps` steps, to compare with `Workload.losses`."""
    step = _trainer(workload, compiled)
    return [step(index) for index in range(workload.sizes.steps)]


def _trainer(workload: Workload, compiled: bool) -> Callable[[int], float]:
    model = LanguageModel(workload.architecture).start(workload.start.params)
    return make_step(model, workload.optimizer, workload.batches, compiled)
