"""`decode`: measure the cost of a token for long contexts and large batches, in time and memory."""

from dataclasses import dataclass
from typing import Any

from based_jax.models import param_count
from based_jax.validate import expect, expect_choice
from benchmarks.decode import tables
from benchmarks.decode.models import BASED, LABELS, MODELS, SIZES, model_config, random_weights
from benchmarks.decode.programs import (
    BATCHES,
    CONTEXTS,
    FIRST,
    GENERATE,
    PARTS,
    PREFILL,
    READ,
    Decoder,
    Part,
    Work,
)
from benchmarks.flags import Counts, Names
from benchmarks.study import Flags, Study

SWEPT = ("contexts", "context_batches", "lengths", "batches")

PREFILL_BATCH = 2
"""Prompts per call of `prefill`."""


@dataclass(frozen=True)
class Decode(Flags):
    """Decoding of Based, Transformer++ and Mamba of equal size, with random weights, on CPU in float32.

    Time per token against the context; prefill against its length; tokens per second and the time to the
    first token against the batch; bytes per sequence (Based, Table 1 and Figure 4). All models take turns.
    Ctrl-C keeps the measurements so far. On a GPU the sections generate and prefill of `gpu` measure whole
    models.
    """

    presets: str = "tiny"
    """Size of the timed models: tiny, 360m or 1b."""
    models: Names = MODELS
    """Models to time: based and any of attention, mamba."""
    parts: Names = PARTS
    """Questions to answer: contexts, prefill, batches."""
    contexts: Counts = (1024, 2048, 4096, 8192, 16384, 32768)
    """Tokens of the contexts; the last --steps are timed; attention's cache has as many slots."""
    context_batches: Counts = (1, 8)
    """Batches at which contexts are swept."""
    steps: int = 64
    """Tokens per timed call of `contexts`."""
    lengths: Counts = (512, 1024, 2048, 4096, 8192, 16384)
    """Tokens of the prompts of `prefill`, two per call."""
    batches: Counts = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    """Batches of `batches`."""
    prompt: int = 128
    """Tokens of the prompts of `batches`, whose first new token is timed alone."""
    tokens: int = 1024
    """New tokens per row of `batches`."""
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
        settings = {
            "size": self.presets,
            "models": list(configs),
            "parts": [part for part in PARTS if part in self.parts],
            **{name: sorted(set(getattr(self, name))) for name in SWEPT},
            **{name: getattr(self, name) for name in ("steps", "prompt", "tokens")},
            "prefill_batch": PREFILL_BATCH,
        }
        results = self.new_report("decode", command, settings, described)
        results["summary"] = {"growth_from_length": self.fit_from}
        studies: list[tuple[Part, Study]] = []

        def sweeps():
            decoders = [Decoder(name, config, random_weights(config)) for name, config in configs.items()]
            for part in self._parts():
                study = self.study(results, part.candidates(decoders), part.passes, name=part.name)
                studies.append((part, study))
                yield study, part.values

        def rows() -> list[dict[str, Any]]:
            return [
                part.row(configs[row["candidate"]], row) for part, study in studies for row in study.rows()
            ]

        return self.measure(results, sweeps(), rows, "Decoding", tables.text)

    def _parts(self) -> list[Part]:
        """Return the questions, with the work of a call at each swept value and pass."""
        batches = {f"batch {batch}": batch for batch in sorted(set(self.context_batches))}
        capacity = self.prompt + self.tokens

        def after_context(context: int, direction: str) -> Work:
            return Work(batches[direction], context - self.steps, self.steps, context)

        def of_batch(batch: int, direction: str) -> Work:
            start, tokens = (0, self.prompt) if direction == FIRST else (self.prompt, self.tokens)
            return Work(batch, start, tokens, capacity)

        parts = [
            Part(CONTEXTS, sorted(set(self.contexts)), tuple(batches), after_context),
            Part(PREFILL, sorted(set(self.lengths)), (READ,), lambda n, _: Work(PREFILL_BATCH, 0, n, n)),
            Part(BATCHES, sorted(set(self.batches)), (FIRST, GENERATE), of_batch),
        ]
        return [part for part in parts if part.name in self.parts]

    def _check(self) -> None:
        self.check(*SWEPT, "fit_from", "steps", "prompt", "tokens", parts=PARTS, models=MODELS)
        shortest = min(self.contexts)
        expect(shortest > self.steps, "--contexts", shortest, f"more than --steps {self.steps}")
        expect_choice("--presets", self.presets, SIZES)
        expect(BASED in self.models, "--models", ",".join(self.models), "based among them")
