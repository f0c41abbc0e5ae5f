"""Time the rows of `layers` in torch, from the same parameters. Needs torch."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.machine import cores
from benchmarks.models.train_workload import TorchForm
from benchmarks.ops.candidates import Program
from benchmarks.ops.torch_ops import SQUARE_MATRICES
from benchmarks.torch_reference import taylor
from benchmarks.torch_reference.language_model import LAYERS

if TYPE_CHECKING:
    from benchmarks.models.layers import Inputs, Layer


def program(layer: "Layer", inputs: "Inputs", form: TorchForm) -> Program:
    """Return the timed program; `torch.compile` compiles at the first call, which runs here."""
    torch.set_num_threads(cores())
    options = layer.spec.options
    module = LAYERS[layer.spec.mixer](layer.d_model, options, taylor.FORMS[form.in_chunks])
    module.load_state_dict(
        {name: torch.from_numpy(np.array(x)) for name, x in layer.tensors(layer.params).items()}
    )
    parameters = dict(module.named_parameters())
    x, gradient = map(torch.from_numpy, inputs.arrays)
    x.requires_grad_()
    forward = torch.compile(module, dynamic=False) if form.compiled else module

    def call() -> Any:
        y = forward(x)
        return y, *torch.autograd.grad(y, (x, *(parameters[name] for name in sorted(parameters))), gradient)

    begin = time.perf_counter()
    if form.compiled:
        call()
    heads = options.get("num_heads", 0)
    is_square = layer.spec.mixer == "linear_attention" and not form.in_chunks
    squares = SQUARE_MATRICES["torch_taylor", False] * heads * inputs.length**2 if is_square else 0
    return Program(
        call=call,
        to_numpy=lambda result: [x.detach().numpy() for x in result],
        compile_seconds=time.perf_counter() - begin if form.compiled else None,
        needed_bytes=4 * squares,
    )
