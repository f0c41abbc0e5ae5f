"""`decode`: measure the cost of a token for long contexts and large batches, in time and memory."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax

from based_jax.models import ModelConfig, param_count
from based_jax.validate import expect, expect_choice
from benchmarks import report, tables
from benchmarks.analysis import Row, crossover, growth_exponent, series
from benchmarks.decode import parts as decode_parts
from benchmarks.decode import tables as decode_tables
from benchmarks.decode.memory import device_bytes, memory_rows
from benchmarks.decode.models import (
    BASED,
    CUDNN,
    LABELS,
    MODELS,
    SIZES,
    model_config,
    one_of_each,
    random_weights,
    unavailable,
    with_weights_of,
)
from benchmarks.decode.parts import BATCHES, CONTEXTS, MEMORY, PARTS, PREFILL, Part
from benchmarks.decode.programs import Decoder
from benchmarks.flags import StudyFlags, comma_list, expect_figure
from benchmarks.gpu.sections.session import check_device
from benchmarks.memory import GIB
from benchmarks.study import Study

QUICK: dict[str, Any] = {
    "contexts": (16, 32),
    "context_batches": (1,),
    "steps": 2,
    "lengths": (8,),
    "fit_from": 8,
    "batches": (2,),
    "prompt": 4,
    "tokens": 2,
    "fit": ("tiny",),
    "samples": 1,
}
"""The values that --quick sets."""

MEMORY_DTYPE = "bfloat16"
"""The dtype of the memory table, whatever is timed: the one in which large models are served."""


@dataclass(frozen=True)
class Decode(StudyFlags):
    """Decoding of Based, Transformer++ and Mamba of equal size, with random weights, on JAX's first device.

    Time per token against the context; prefill against its length; tokens per second and the time to the
    first token against the batch; bytes per sequence, and the largest batch that fits into memory (Based,
    Table 1 and Figure 4). All models take turns. Ctrl-C keeps the measurements so far.
    """

    plot: Path | None = None
    """Draw cost against context and batch into this file (.png, .svg or .pdf; needs matplotlib)."""
    presets: str = "tiny"
    """Size of the timed models: tiny, 360m or 1b."""
    models: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = MODELS
    """Models to time: based and any of attention, attention_cudnn (attention with cuDNN's kernels), mamba."""
    parts: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = PARTS
    """Questions to answer: contexts, prefill, batches, memory."""
    contexts: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (1024, 2048, 4096, 8192, 16384, 32768)
    """Tokens of the contexts; the last --steps are timed; attention's cache has as many slots."""
    context_batches: Annotated[tuple[int, ...], comma_list(int, "B,B,...")] = (1, 8)
    """Batches at which contexts are swept."""
    steps: int = 64
    """Tokens per timed call of `contexts`."""
    lengths: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (512, 1024, 2048, 4096, 8192, 16384)
    """Tokens of the prompts of `prefill`."""
    prefill_batch: int = 2
    """Prompts per call of `prefill`."""
    batches: Annotated[tuple[int, ...], comma_list(int, "B,B,...")] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    """Batches of `batches`."""
    prompt: int = 128
    """Tokens of the prompts of `batches`, whose first new token is timed alone."""
    tokens: int = 1024
    """New tokens per row of `batches`."""
    fit: Annotated[tuple[str, ...], comma_list(str, "SIZE,SIZE,...")] = SIZES
    """Sizes in the memory table, in bfloat16; no weights are allocated."""
    memory: float | None = None
    """Memory for the largest batch, in GiB; by default the device's (on a CPU the free RAM)."""
    dtype: str | None = None
    """float32 or bfloat16, of weights and computation; float32 on a CPU, else bfloat16, by default."""
    seconds: float = 20.0
    """Time budget per case, in seconds: a case that would exceed it has fewer samples, or is skipped."""
    fit_from: int = 4096
    """Shortest context or prompt, in tokens, that enters the fitted growth exponents."""
    memory_limit: float | None = None
    """Skip cases that need more than this, in GiB; half of the device's memory by default."""
    samples: int = 3
    """Samples per case; the tables show their median."""
    quick: bool = False
    """Use tiny sizes, one layer of each kind and one sample, to test the command itself."""
    minutes: float | None = None
    """Stop before so many minutes are over, keeping the measurements; by default everything is measured."""
    markdown: Path | None = None
    """Put tables into this file, between the lines `<!-- decode -->` and `<!-- /decode -->`."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, 1 if a model failed, 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value.
        """
        self._check()
        flags = replace(self, **QUICK) if self.quick else self
        return flags._run(command)

    def _run(self, command: str) -> int:
        device = jax.devices()[0]
        dtype = self.dtype or ("float32" if device.platform == "cpu" else "bfloat16")
        configs = {name: self._config(name, dtype) for name in LABELS if name in self.models}
        described = [
            {
                "name": name,
                "label": LABELS[name],
                "d_model": config.d_model,
                "schedule": config.schedule,
                "parameters": param_count(self._config(with_weights_of(name), dtype)),
            }
            for name, config in configs.items()
        ]
        settings = self._settings(device, dtype)
        results = report.new_report("decode", command, settings, described, notes := [])
        results["memory"] = []
        interrupted = False
        try:
            results["complete"] = self._measure(configs, results)
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            notes.append(report.INTERRUPTED)
        elif not results["complete"]:
            notes.append(f"The {self.minutes:g} minutes were spent: this is what was measured until then.")
        files = report.Files(json=self.json, markdown=self.markdown, plot=self.plot)
        report.write(results, "Decoding", decode_tables.text, files)
        return 130 if interrupted else int(any(row["status"] == "failed" for row in results["rows"]))

    def _config(self, name: str, dtype: str) -> ModelConfig:
        config = model_config(name, self.presets, dtype)
        return one_of_each(config) if self.quick else config

    def _settings(self, device: Any, dtype: str) -> dict[str, Any]:
        memory = device_bytes() if self.memory is None else self.memory * GIB
        limit = device_bytes() / 2 if self.memory_limit is None else self.memory_limit * GIB
        numbers = ("contexts", "context_batches", "lengths", "batches")
        return {
            "device": device.platform,
            "device_kind": device.device_kind,
            "dtype": dtype,
            "size": self.presets,
            "quick": self.quick,
            "models": [name for name in LABELS if name in self.models],
            "parts": [part for part in PARTS if part in self.parts],
            **{name: sorted(set(getattr(self, name))) for name in numbers},
            "steps": self.steps,
            "prefill_batch": self.prefill_batch,
            "prompt": self.prompt,
            "tokens": self.tokens,
            "samples": self.samples,
            "seconds_budget": self.seconds,
            "memory_limit_gib": round(limit / GIB, 3),
            "memory_gib": round(memory / GIB, 3),
            "memory_dtype": MEMORY_DTYPE,
        }

    def _measure(self, configs: Mapping[str, ModelConfig], results: report.Report) -> bool:
        """Measure part by part, updating the report after each value; return False if the time ran out.

        Raises:
            KeyboardInterrupt: Ctrl-C; the report has the measurements so far.
            DeviceLostError: the device stopped answering. The report names the case.
        """
        settings, ends, longest = results["settings"], time.monotonic() + 60 * (self.minutes or math.inf), 0.0
        if MEMORY in settings["parts"]:
            report.say("memory: compiling one layer of each kind")
            results["memory"] = memory_rows(
                [name for name in configs if name != CUDNN],
                self.fit,
                settings["contexts"],
                MEMORY_DTYPE,
                settings["memory_gib"] * GIB,
            )
        parts = [part for part in self._sweeps(settings) if part.name in settings["parts"]]
        if not parts:
            return True
        weights = {
            name: random_weights(self._config(name, settings["dtype"]))
            for name in dict.fromkeys(map(with_weights_of, configs))
        }
        decoders = {
            name: Decoder(name, config, weights[with_weights_of(name)], unavailable(name, config))
            for name, config in configs.items()
        }
        for part in parts:
            study = Study(
                lambda value: value,
                part.candidates(list(decoders.values())),
                part.passes,
                self.samples,
                self.seconds,
                settings["memory_limit_gib"] * GIB,
                lambda line, part=part: report.say(f"{part.name} {line}"),
                device=jax.devices()[0],
                goes_on=True,
            )
            for value in part.values:
                begun, first = time.monotonic(), len(study.cases)
                if begun + longest > ends:  # one more value may take as long as the longest so far
                    return False
                study.budget = min(self.seconds, (ends - begun) / len(study.candidates) / len(study.passes))
                complete = study.measure([value], lambda: None)
                for case in study.cases[first:]:
                    if case.failed:
                        check_device(RuntimeError(case.failed))
                results["rows"] += [part.row(decoders, case.row()) for case in study.cases[first:]]
                results["summary"] = summary(results["rows"], self.fit_from)
                if self.json:
                    report.save(results, self.json)
                if not complete:
                    raise KeyboardInterrupt
                longest = max(longest, time.monotonic() - begun)
        return True

    def _sweeps(self, settings: dict[str, Any]) -> list[Part]:
        return [
            decode_parts.contexts(settings["contexts"], settings["context_batches"], self.steps),
            decode_parts.prefill(settings["lengths"], self.prefill_batch),
            decode_parts.batches(settings["batches"], self.prompt, self.tokens),
        ]

    def _check(self) -> None:
        self.check(
            samples=self.samples,
            steps=self.steps,
            prefill_batch=self.prefill_batch,
            prompt=self.prompt,
            tokens=self.tokens,
        )
        for flag in ("contexts", "context_batches", "batches"):
            shown, values = f"--{flag.replace('_', '-')}", getattr(self, flag)
            expect(len(values) > 0, shown, "", "at least one number")
            expect(min(values) >= 1, shown, min(values), "at least 1")
        shortest = min(self.contexts)
        expect(shortest > self.steps, "--contexts", shortest, f"more than --steps {self.steps}")
        expect_choice("--presets", self.presets, SIZES)
        chosen = (
            ("--parts", self.parts, PARTS),
            ("--fit", self.fit, SIZES),
            ("--models", self.models, LABELS),
        )
        for flag, values, known in chosen:
            expect(len(values) > 0, flag, "", "at least one of " + ", ".join(known))
            for value in values:
                expect_choice(flag, value, tuple(known))
        expect(BASED in self.models, "--models", ",".join(self.models), "based among them")
        expect_choice("--dtype", self.dtype, (None, "float32", "bfloat16"))
        for flag, value, unit in (("--memory", self.memory, "GiB"), ("--minutes", self.minutes, "minutes")):
            expect(value is None or 0 < value < math.inf, flag, value, f"more than 0 {unit}")
        expect_figure("--plot", self.plot)
        drawn = {CONTEXTS, BATCHES} & set(self.parts)
        expect(not self.plot or bool(drawn), "--plot", str(self.plot), "contexts or batches among --parts")
        if self.markdown:
            tables.insert(self.markdown.read_text(), "decode", None)


def summary(rows: Sequence[Row], start: int) -> dict[str, Any]:
    """Fit exponents of token time, prefill time and state from `start` tokens up; find crossovers."""
    models = list(dict.fromkeys(row["candidate"] for row in rows))
    swept = {part: [row for row in rows if row["part"] == part] for part in (CONTEXTS, PREFILL)}
    growth = [
        {
            "part": part,
            "candidate": name,
            "pass": direction,
            "time_exponent": growth_exponent(series(of_part, name, direction), start),
            "state_exponent": growth_exponent(series(of_part, name, direction, "state_bytes"), start),
        }
        for part, of_part in swept.items()
        for name in models
        for direction in dict.fromkeys(row["pass"] for row in of_part)
    ]
    overtakes = [
        {
            "part": part,
            "pass": direction,
            "candidate": BASED,
            "other": other,
            "length": crossover(series(of_part, BASED, direction), series(of_part, other, direction)),
        }
        for part, of_part in swept.items()
        for direction in dict.fromkeys(row["pass"] for row in of_part)
        for other in models
        if other != BASED
    ]
    return {"growth_from_length": start, "growth": growth, "crossover": overtakes}
