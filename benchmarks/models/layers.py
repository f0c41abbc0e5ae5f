"""`layers`: measure Based's three layers on this machine's CPU, forward and backward, beside torch."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import meta
from rich.console import Console

from based_jax import mixers
from based_jax.convert.layouts import flatten, to_tensors
from based_jax.convert.tables import MIXERS
from based_jax.models import MixerSpec
from based_jax.training.devices.host_memory import keep_freed_memory
from based_jax.typing import Array, Params
from based_jax.validate import expect, expect_choice
from benchmarks import report
from benchmarks.beside_torch import make_report
from benchmarks.flags import comma_list, expect_writable
from benchmarks.memory import GIB, available_bytes
from benchmarks.models import layer_tables
from benchmarks.models.train_workload import TORCH, WINDOW, Sizes, TorchForm
from benchmarks.ops.candidates import FORWARD_BACKWARD, Candidate, Program, compile_jitted
from benchmarks.ops.torch_ops import missing as missing_torch
from benchmarks.study import Study

AGREEMENT = 1e-4
"""Allowed difference of outputs and gradients between JAX and torch, relative to the largest of an array."""

LAYERS = ("gated_conv", "sliding_window", "linear_attention")


@dataclass(frozen=True)
class Inputs:
    """A layer's input and the gradient of its output, (1, N, D) float32, the same for every candidate."""

    length: int
    d_model: int

    @functools.cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return x and the gradient of y."""
        draw = np.random.default_rng(1).standard_normal
        return draw((1, self.length, self.d_model), np.float32), draw(
            (1, self.length, self.d_model), np.float32
        )


@dataclass(frozen=True)
class Layer:
    """One layer, with the same parameters in JAX and torch."""

    spec: MixerSpec
    d_model: int

    @functools.cached_property
    def mixer(self) -> mixers.Mixer:
        """Return the mixer in JAX."""
        return mixers.make(self.spec.mixer, d_model=self.d_model, **self.spec.options)

    @functools.cached_property
    def params(self) -> Params:
        """Return its parameters."""
        x = jnp.zeros((1, 1, self.d_model))
        return meta.unbox(jax.jit(self.mixer.init)(jax.random.key(0), x))

    def tensors(self, params: Params) -> dict[str, np.ndarray]:
        """Return parameters, or their gradients, under torch's names and in its layout."""
        leaves = {path: np.asarray(leaf) for path, leaf in flatten(params["params"]).items()}
        return to_tensors(MIXERS[self.spec.mixer], leaves)

    def program(self, inputs: Inputs, _: str) -> Program:
        """Compile outputs and gradients for inputs of one length."""

        def run(params: Params, x: Array, gradient: Array) -> Any:
            y, pull_back = jax.vjp(lambda params, x: self.mixer.apply(params, x)[0], params, x)
            return y, *pull_back(gradient)

        program = compile_jitted(jax.jit(run), [self.params, *map(jnp.asarray, inputs.arrays)])

        def to_numpy(result: Any) -> list[np.ndarray]:
            y, dparams, dx = result
            tensors = self.tensors(dparams)
            return [np.asarray(y), np.asarray(dx), *(tensors[name] for name in sorted(tensors))]

        return dataclasses.replace(program, to_numpy=to_numpy)


@dataclass(frozen=True)
class Layers:
    """Time of Based's layers against length, forward and backward, beside torch, on CPU in float32, batch 1.

    Outputs, and gradients by parameters and input, of the mixers alone, without norm and residual. JAX and
    torch have the same parameters and must compute the same numbers, or the exit status is 1.
    """

    layers: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = LAYERS
    """gated_conv, sliding_window, linear_attention."""
    lengths: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (512, 1024, 2048, 4096)
    """Tokens per row, multiples of the window of 64 keys; 8,192 take torch's quadratic form over 24 GiB."""
    d_model: int = 512
    """Channels of the inputs and outputs; heads have 64."""
    samples: int = 5
    """Samples per case; the table shows their median."""
    seconds: float = 10.0
    """Time budget per case, in seconds: a case that would exceed it has fewer samples, or is skipped."""
    json: Path | None = None
    """Write every number here, with the facts about the machine."""
    markdown: Path | None = None
    """Put a table into this file, between the lines `<!-- layers -->` and `<!-- /layers -->`."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, 1 if JAX and torch disagree, 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value.
        """
        keep_freed_memory()
        self._check()
        limit = available_bytes() / 2
        settings = {
            "d_model": self.d_model,
            "batch": 1,
            "dtype": "float32",
            "lengths": sorted(set(self.lengths)),
            "samples": self.samples,
            "seconds_budget": self.seconds,
            "memory_limit_gib": round(limit / GIB, 3),
        }
        candidates = [candidate for name in self.layers for candidate in self._candidates(name)]
        return make_report(
            "layers",
            command,
            settings,
            candidates,
            lambda results, progress: self._measure(candidates, results, limit, progress),
            layer_tables,
            json=self.json,
            markdown=self.markdown,
        )

    def _measure(
        self, candidates: list[Candidate], results: dict[str, Any], limit: float, progress: Console
    ) -> bool:
        """Measure all lengths, updating the report after each; return False after Ctrl-C."""
        study = Study(
            lambda length: Inputs(length, self.d_model),
            candidates,
            (FORWARD_BACKWARD,),
            self.samples,
            self.seconds,
            limit,
            progress.print,
            compilers=1,
        )

        def collect() -> None:
            results["rows"] = [{"layer": row["candidate"].partition(" ")[0], **row} for row in study.rows()]
            results["agreement"] = [{**entry, "agrees": _agrees(entry)} for entry in study.agreement]
            results["summary"] = {"ratios": layer_tables.ratios(results["rows"])}
            if self.json:
                report.save(results, self.json)

        complete = study.measure(results["settings"]["lengths"], collect)
        collect()
        return complete

    def _candidates(self, name: str) -> list[Candidate]:
        """List the layer in JAX, then in torch: chunks are a form of linear attention."""
        schedule = Sizes(d_model=self.d_model).architecture("based")
        specs = (schedule.layer(index) for index in range(schedule.num_layers))
        layer = Layer(next(spec for spec in specs if spec.mixer == name), self.d_model)
        reason = missing_torch()
        lacks = {FORWARD_BACKWARD: reason} if reason else {}
        rows = [Candidate(f"{name} jax", "based_jax", "jax", name, layer.program)]
        for form_name, form in TORCH.items():

            def prepare(inputs: Inputs, _: str, form: TorchForm = form) -> Program:
                from benchmarks.models import layer_torch

                return layer_torch.program(layer, inputs, form)

            if name == "linear_attention" or not form.in_chunks:
                rows.append(Candidate(f"{name} {form_name}", form.label, "torch", name, prepare, lacks))
        return rows

    def _check(self) -> None:
        """Check every flag before anything is compiled."""
        expect(len(self.lengths) > 0, "--lengths", "", "at least one length")
        for length in self.lengths:
            valid = length >= WINDOW and length % WINDOW == 0
            expect(valid, "--lengths", length, f"multiples of the window of {WINDOW} keys")
        valid = self.d_model >= 64 and self.d_model % 64 == 0
        expect(valid, "--d-model", self.d_model, "a multiple of the heads' 64 channels")
        expect(self.samples >= 1, "--samples", self.samples, "at least 1")
        expect(0 < self.seconds < math.inf, "--seconds", self.seconds, "more than 0 seconds")
        for name in self.layers:
            expect_choice("--layers", name, LAYERS)
        shown = ",".join(self.layers)
        expect(0 < len(set(self.layers)) == len(self.layers), "--layers", shown, "one or more, each once")
        expect_writable("--json", self.json)
        if self.markdown:
            layer_tables.insert(self.markdown.read_text(), None)


def _agrees(entry: Mapping[str, Any]) -> bool:
    return entry["relative_error"] is not None and entry["relative_error"] <= AGREEMENT
