"""`decode`: what a token costs behind ever longer contexts, for ever larger batches, and in memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
from rich.console import Console

from based_jax.models import ModelConfig, param_count
from based_jax.validate import expect, expect_choice
from benchmarks import decode_figure, decode_parts, decode_tables, report
from benchmarks.analysis import Row, crossover, growth_exponent, series
from benchmarks.decode_memory import device_bytes, memory_rows
from benchmarks.decode_models import BASED, LABELS, SIZES, model_config, one_of_each, random_weights
from benchmarks.decode_parts import BATCHES, CONTEXTS, MEMORY, PARTS, PREFILL, Part
from benchmarks.decode_programs import Decoder
from benchmarks.flags import StudyFlags, comma_list
from benchmarks.memory import GIB
from benchmarks.study import INTERRUPTED, Study

QUICK: dict[str, Any] = {
    "contexts": (16, 32), "context_batches": (1,), "steps": 2, "lengths": (8,), "fit_from": 8,
    "batches": (2,), "prompt": 4, "tokens": 2, "fit": ("tiny",), "samples": 1,
}  # fmt: skip
"""What --quick sets."""

MEMORY_DTYPE = "bfloat16"
"""In which the memory table counts, whatever is timed: what large models are served in."""


@dataclass(frozen=True)
class Decode(StudyFlags):
    """Decoding of Based, Transformer++ and Mamba of equal size, with random weights, on JAX's first device.

    Time per token against the context; prefill against its length; tokens per second and the time to the
    first token against the batch; bytes per sequence, and the largest batch that fits into memory (Based,
    Table 1 and Figure 4). All models take turns. Ctrl-C keeps what was measured.
    """

    presets: str = "tiny"
    """Size of the timed models: tiny, 360m or 1b."""
    parts: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = PARTS
    """Questions: contexts, prefill, batches, memory."""
    contexts: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (1024, 2048, 4096, 8192, 16384, 32768)
    """Tokens of the contexts, whose last --steps are timed; attention's cache has as many slots."""
    context_batches: Annotated[tuple[int, ...], comma_list(int, "B,B,...")] = (1, 8)
    """Batches at which contexts are swept."""
    steps: int = 64
    """Tokens per timed call there."""
    lengths: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = (512, 1024, 2048, 4096, 8192, 16384)
    """Tokens of the prompts of `prefill`."""
    prefill_batch: int = 2
    """Prompts at a time there."""
    batches: Annotated[tuple[int, ...], comma_list(int, "B,B,...")] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    """Batches of `batches`."""
    prompt: int = 128
    """Tokens of the prompts there, whose first new token is timed alone."""
    tokens: int = 1024
    """New tokens per row there."""
    fit: Annotated[tuple[str, ...], comma_list(str, "SIZE,SIZE,...")] = SIZES
    """Sizes in the memory table, in bfloat16; no weights are allocated."""
    memory: float | None = None
    """Memory for the largest batch, in GiB; by default the device's (on a CPU the RAM that is free)."""
    dtype: str | None = None
    """float32 or bfloat16, of weights and computation; float32 on a CPU, else bfloat16, by default."""
    seconds: float = 20.0
    """Time budget per case, in seconds: fewer samples, or a skipped case, where it would be exceeded."""
    fit_from: int = 4096
    """Shortest context or prompt, in tokens, that enters the fitted growth exponents."""
    memory_limit: float | None = None
    """Skip cases that need more than this, in GiB; half of the device's memory by default."""
    samples: int = 3
    """Samples per case; the tables show their median."""
    quick: bool = False
    """Tiny sizes, one layer of each kind, one sample: does the command itself work?"""
    markdown: Path | None = None
    """Put tables into this file, between the lines `<!-- decode -->` and `<!-- /decode -->`."""

    def run(self, command: str) -> int:
        """Measure, show, write; 0, or 130 after Ctrl-C. Raises ValueError for a senseless flag."""
        self._check()
        flags = replace(self, **QUICK) if self.quick else self
        return flags._run(command)

    def _run(self, command: str) -> int:
        device = jax.devices()[0]
        dtype = self.dtype or ("float32" if device.platform == "cpu" else "bfloat16")
        configs = {name: model_config(name, self.presets, dtype) for name in LABELS}
        if self.quick:
            configs = {name: one_of_each(config) for name, config in configs.items()}
        described = [
            {
                "name": name, "label": LABELS[name], "d_model": config.d_model,
                "schedule": config.schedule, "parameters": param_count(config),
            }
            for name, config in configs.items()
        ]  # fmt: skip
        settings = self._settings(device, dtype)
        results = report.new_report("decode", command, settings, described, notes := [])
        results["memory"] = []
        progress = Console(stderr=True, highlight=False)
        try:
            results["complete"] = self._measure(configs, results, progress)
        except KeyboardInterrupt:
            results["complete"] = False
        if not results["complete"]:
            notes.append(INTERRUPTED)
        self._save(results)
        decode_tables.show(results)
        if self.plot:
            decode_figure.draw(results, self.plot)
        if self.markdown:
            self.markdown.write_text(decode_tables.insert(self.markdown.read_text(), results))
        for path in filter(None, (self.json, self.plot, self.markdown)):
            progress.print(f"wrote {path}")
        return 0 if results["complete"] else 130

    def _settings(self, device: Any, dtype: str) -> dict[str, Any]:
        memory = device_bytes() if self.memory is None else self.memory * GIB
        limit = device_bytes() / 2 if self.memory_limit is None else self.memory_limit * GIB
        numbers = ("contexts", "context_batches", "lengths", "batches")
        return {
            "device": device.platform, "device_kind": device.device_kind, "dtype": dtype,
            "size": self.presets, "quick": self.quick, "parts": [p for p in PARTS if p in self.parts],
            **{name: sorted(set(getattr(self, name))) for name in numbers},
            "steps": self.steps, "prefill_batch": self.prefill_batch, "prompt": self.prompt,
            "tokens": self.tokens, "samples": self.samples, "seconds_budget": self.seconds,
            "memory_limit_gib": round(limit / GIB, 3), "memory_gib": round(memory / GIB, 3),
            "memory_dtype": MEMORY_DTYPE,
        }  # fmt: skip

    def _measure(
        self, configs: Mapping[str, ModelConfig], results: dict[str, Any], progress: Console
    ) -> bool:
        """Part by part, the report up to date after each value; False if Ctrl-C came in a sweep."""
        settings = results["settings"]
        if MEMORY in settings["parts"]:
            progress.print("memory: compiling one layer of each kind")
            results["memory"] = memory_rows(
                tuple(configs), self.fit, settings["contexts"], MEMORY_DTYPE, settings["memory_gib"] * GIB
            )
            self._save(results)
        parts = [part for part in self._sweeps(settings) if part.name in settings["parts"]]
        if not parts:
            return True
        decoders = {name: Decoder(name, config, random_weights(config)) for name, config in configs.items()}
        done: list[tuple[Part, Study]] = []

        def collect() -> None:
            results["rows"] = [part.row(decoders, row) for part, study in done for row in study.rows()]
            results["summary"] = summary(results["rows"], self.fit_from)
            self._save(results)

        for part in parts:
            study = Study(
                lambda value: value, part.contestants(list(decoders.values())), part.passes, self.samples,
                self.seconds, settings["memory_limit_gib"] * GIB,
                lambda line, part=part: progress.print(f"{part.name} {line}"),
                device=jax.devices()[0],
            )  # fmt: skip
            done.append((part, study))
            complete = study.measure(part.values, collect)
            collect()
            if not complete:
                return False
        return True

    def _sweeps(self, settings: dict[str, Any]) -> list[Part]:
        return [
            decode_parts.contexts(settings["contexts"], settings["context_batches"], self.steps),
            decode_parts.prefill(settings["lengths"], self.prefill_batch),
            decode_parts.batches(settings["batches"], self.prompt, self.tokens),
        ]

    def _save(self, results: dict[str, Any]) -> None:
        """Even a killed run leaves its numbers behind."""
        if self.json:
            report.save(results, self.json)

    def _check(self) -> None:
        self.check(
            samples=self.samples, steps=self.steps, prefill_batch=self.prefill_batch, prompt=self.prompt,
            tokens=self.tokens,
        )  # fmt: skip
        for flag in ("contexts", "context_batches", "batches"):
            shown, values = f"--{flag.replace('_', '-')}", getattr(self, flag)
            expect(len(values) > 0, shown, "", "at least one number")
            expect(min(values) >= 1, shown, min(values), "at least 1")
        shortest = min(self.contexts)
        expect(shortest > self.steps, "--contexts", shortest, f"more than --steps {self.steps}")
        expect_choice("--presets", self.presets, SIZES)
        for flag, values, known in (("--parts", self.parts, PARTS), ("--fit", self.fit, SIZES)):
            expect(len(values) > 0, flag, "", "at least one of " + ", ".join(known))
            for value in values:
                expect_choice(flag, value, known)
        expect_choice("--dtype", self.dtype, (None, "float32", "bfloat16"))
        sensible = self.memory is None or 0 < self.memory < math.inf
        expect(sensible, "--memory", self.memory, "more than 0 GiB")
        drawn = {CONTEXTS, BATCHES} & set(self.parts)
        expect(not self.plot or bool(drawn), "--plot", str(self.plot), "contexts or batches among --parts")
        if self.markdown:
            decode_tables.insert(self.markdown.read_text(), None)


def summary(rows: Sequence[Row], start: int) -> dict[str, Any]:
    """Exponents of time per token, prefill time and state from `start` tokens up; where Based overtakes."""
    swept = {part: [row for row in rows if row["part"] == part] for part in (CONTEXTS, PREFILL)}
    growth = [
        {
            "part": part,
            "contestant": name,
            "pass": direction,
            "time_exponent": growth_exponent(series(of_part, name, direction), start),
            "state_exponent": growth_exponent(series(of_part, name, direction, "state_bytes"), start),
        }
        for part, of_part in swept.items()
        for name in LABELS
        for direction in dict.fromkeys(row["pass"] for row in of_part)
    ]
    overtakes = [
        {
            "part": part,
            "pass": direction,
            "contestant": BASED,
            "other": other,
            "length": crossover(series(of_part, BASED, direction), series(of_part, other, direction)),
        }
        for part, of_part in swept.items()
        for direction in dict.fromkeys(row["pass"] for row in of_part)
        for other in LABELS
        if other != BASED
    ]
    return {"growth_from_length": start, "growth": growth, "crossover": overtakes}
