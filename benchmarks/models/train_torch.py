"""Time the rows of `train` in torch: `torch_reference`'s models from the same parameters. Needs torch."""

import time
from collections.abc import Callable

from benchmarks.models.train_workload import TorchForm, Workload
from benchmarks.ops.candidates import Program
from benchmarks.ops.torch_ops import SQUARE_MATRICES
from benchmarks.torch_reference import taylor
from benchmarks.torch_reference.language_model import LanguageModel
from benchmarks.torch_reference.training import make_step

LOGIT_ARRAYS = 4
"""Live float32 arrays of the logits' size at the peak of a step, to skip cases that cannot fit."""


def program(workload: Workload, form: TorchForm) -> Program:
    """Return the timed program: `steps` steps. `torch.compile` compiles at the first one, which runs here."""
    step, sizes = _trainer(workload, form), workload.sizes
    begin = time.perf_counter()
    if form.compiled:
        step(0)
    return Program(
        call=lambda: [step(index) for index in range(sizes.steps)],
        to_numpy=list,
        compile_seconds=time.perf_counter() - begin if form.compiled else None,
        needed_bytes=_needed_bytes(workload, form),
    )


def losses(workload: Workload, form: TorchForm) -> list[float]:
    """Return the losses of the first `steps` steps, to compare with `Workload.losses`."""
    step = _trainer(workload, form)
    return [step(index) for index in range(workload.sizes.steps)]


def _needed_bytes(workload: Workload, form: TorchForm) -> int:
    sizes, architecture = workload.sizes, workload.architecture
    logits = LOGIT_ARRAYS * sizes.batch_size * sizes.length * architecture.padded_vocab_size
    layers = 0 if form.in_chunks else architecture.schedule.count("L")
    squares = (
        layers * SQUARE_MATRICES["torch_taylor", False] * sizes.batch_size * sizes.heads * sizes.length**2
    )
    return 4 * (logits + squares)


def _trainer(workload: Workload, form: TorchForm) -> Callable[[int], float]:
    model = LanguageModel(workload.architecture, taylor.FORMS[form.in_chunks]).start(workload.start.params)
    return make_step(model, workload.optimizer, workload.batches, form.compiled)
