"""The questions of `decode` that are timed: what is swept, and what a call does at each value."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.candidates import Candidate, Program
from benchmarks.decode_models import LABELS, state_bytes
from benchmarks.decode_programs import Decoder, Work

CONTEXTS, PREFILL, BATCHES, MEMORY = "contexts", "prefill", "batches", "memory"
PARTS = (CONTEXTS, PREFILL, BATCHES, MEMORY)

READ, FIRST, GENERATE = "prefill", "first_token", "generate"
"""Passes of the parts `prefill` and `batches`; those of `contexts` are batches."""


class Part(NamedTuple):
    """One sweep; all models take turns at each of its values."""

    name: str
    values: Sequence[int]
    passes: Sequence[str]
    work: Callable[[int, str], Work]
    """what a call does at a value, in a pass"""

    def candidates(self, decoders: Sequence[Decoder]) -> list[Candidate]:
        """The models, whose inputs are the values themselves."""

        def prepare(decoder: Decoder, value: int, direction: str) -> Program:
            return decoder.program(self.work(value, direction))

        return [
            Candidate(
                d.name,
                LABELS[d.name],
                "jax",
                None,
                partial(prepare, d),
                lacks=dict.fromkeys(self.passes, d.lacks) if d.lacks else {},
            )
            for d in decoders
        ]

    def row(self, decoders: Mapping[str, Decoder], row: dict[str, Any]) -> dict[str, Any]:
        """A case of the study with what it says of decoding; `length` is the value swept."""
        work, seconds = self.work(row["length"], row["pass"]), row["seconds"]
        config = decoders[row["contestant"]].config
        return {
            "part": self.name,
            **row,
            "batch": work.batch,
            "tokens": work.tokens,
            "seconds_per_token": seconds and seconds / work.tokens,
            "tokens_per_second": seconds and work.batch * work.tokens / seconds,
            "state_bytes": state_bytes(config, work.capacity),
        }


def contexts(values: Sequence[int], batches: Sequence[int], steps: int) -> Part:
    """The last `steps` tokens of a context, by its length, for some batches."""
    batch_of = {f"batch {batch}": batch for batch in batches}

    def work(context: int, direction: str) -> Work:
        return Work(batch_of[direction], context - steps, steps, context)

    return Part(CONTEXTS, values, tuple(batch_of), work)


def prefill(lengths: Sequence[int], batch: int) -> Part:
    """A prompt read in one call, by its length."""
    return Part(PREFILL, lengths, (READ,), lambda length, _: Work(batch, 0, length, length))


def batches(values: Sequence[int], prompt: int, tokens: int) -> Part:
    """A prompt and its first token, then `tokens` more, by batch."""

    def work(batch: int, direction: str) -> Work:
        reads = direction == FIRST
        return Work(batch, 0 if reads else prompt, prompt if reads else tokens, prompt + tokens)

    return Part(BATCHES, values, (FIRST, GENERATE), work)
