"""`decode`: measure the cost of a token for long contexts and large batches, in time and memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from based_jax.models import param_count
from based_jax.validate import expect, expect_choice
from benchmarks import report
from benchmarks.analysis import Row, crossover, growth_exponent, series
from benchmarks.decode import parts as decode_parts
from benchmarks.decode import tables as decode_tables
from benchmarks.decode.models import BASED, LABELS, MODELS, SIZES, model_config, random_weights
from benchmarks.decode.parts import CONTEXTS, PARTS, PREFILL, Part
from benchmarks.decode.programs import Decoder
from benchmarks.flags import StudyFlags, comma_list
from benchmarks.memory import GIB
from benchmarks.study import Study


@dataclass(frozen=True)
class Decode(StudyFlags):
    """Decoding of Based, Transformer++ and Mamba of equal size, with random weights, on CPU in float32.

    Time per token against the context; prefill against its length; tokens per second and the time to the
    first token against the batch; bytes per sequence (Based, Table 1 and Figure 4). All models take turns.
    Ctrl-C keeps the measurements so far. On a GPU the sections generate and prefill of `gpu` measure whole
    models.
    """

    presets: str = "tiny"
    """Size of the timed models: tiny, 360m or 1b."""
    models: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = MODELS
    """Models to time: based and any of attention, mamba."""
    parts: Annotated[tuple[str, ...], comma_list(str, "NAME,NAME,...")] = PARTS
    """Questions to answer: contexts, prefill, batches."""
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
    seconds: float = 20.0
    """Time budget per case, in seconds: a case that would exceed it has fewer samples, or is skipped."""
    fit_from: int = 4096
    """Shortest context or prompt, in tokens, that enters the fitted growth exponents."""
    samples: int = 3
    """Samples per case; the tables show their median."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C. Raises ValueError for a wrong flag."""
        self._check()
        configs = {name: model_config(name, self.presets) for name in MODELS if name in self.models}
        described = [
            {
                "name": name,
                "label": LABELS[name],
                "d_model": config.d_model,
                "schedule": config.schedule,
                "parameters": param_count(config),
            }
            for name, config in configs.items()
        ]
        results = report.new_report("decode", command, self._settings(), described, [])
        measure = partial(self._measure, configs, results)
        return report.make(results, measure, "Decoding", decode_tables.text, self.json)

    def _settings(self) -> dict[str, Any]:
        numbers = ("contexts", "context_batches", "lengths", "batches")
        return {
            "dtype": "float32",
            "size": self.presets,
            "models": [name for name in MODELS if name in self.models],
            "parts": [part for part in PARTS if part in self.parts],
            **{name: sorted(set(getattr(self, name))) for name in numbers},
            **{
                name: getattr(self, name)
                for name in ("steps", "prefill_batch", "prompt", "tokens", "samples")
            },
            "seconds_budget": self.seconds,
            "memory_limit_gib": round(self.memory_bytes(0) / GIB, 3),
        }

    def _measure(self, configs: dict[str, Any], results: report.Report) -> bool:
        """Measure part by part, updating the report after each value; return False after Ctrl-C."""
        settings = results["settings"]
        parts = [part for part in self._sweeps(settings) if part.name in self.parts]
        decoders = {name: Decoder(name, config, random_weights(config)) for name, config in configs.items()}
        for part in parts:
            study = Study(
                lambda value: value,
                part.candidates(list(decoders.values())),
                part.passes,
                self.samples,
                self.seconds,
                settings["memory_limit_gib"] * GIB,
                lambda line, part=part: report.say(f"{part.name} {line}"),
            )
            if not study.measure(
                part.values, partial(self._collect, results, part, decoders, study, results["rows"])
            ):
                return False
        return True

    def _collect(
        self,
        results: report.Report,
        part: Part,
        decoders: dict[str, Decoder],
        study: Study,
        before: list[Row],
    ) -> None:
        """Update the report and write it, so that a killed run keeps its numbers."""
        results["rows"] = [*before, *(part.row(decoders, row) for row in study.rows())]
        results["summary"] = summary(results["rows"], self.fit_from)
        if self.json:
            report.save(results, self.json)

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
            ("--models", self.models, MODELS),
        )
        for flag, values, known in chosen:
            expect(len(values) > 0, flag, "", "at least one of " + ", ".join(known))
            for value in values:
                expect_choice(flag, value, known)
        expect(BASED in self.models, "--models", ",".join(self.models), "based among them")


def summary(rows: Sequence[Row], start: int) -> dict[str, Any]:
    """Fit exponents of token time, prefill time and state from `start` tokens up; find crossovers."""
    found: dict[str, Any] = {"growth_from_length": start, "growth": [], "crossover": []}
    for part in (CONTEXTS, PREFILL):
        of_part = [row for row in rows if row["part"] == part]
        models, passes = (list(dict.fromkeys(row[key] for row in of_part)) for key in ("candidate", "pass"))
        for direction in passes:
            for name in models:
                times, states = (series(of_part, name, direction, key) for key in ("seconds", "state_bytes"))
                where = {"part": part, "pass": direction}
                found["growth"].append(
                    {
                        **where,
                        "candidate": name,
                        "time_exponent": growth_exponent(times, start),
                        "state_exponent": growth_exponent(states, start),
                    }
                )
                if name != BASED:
                    length = crossover(series(of_part, BASED, direction), times)
                    found["crossover"].append({**where, "candidate": BASED, "other": name, "length": length})
    return found
