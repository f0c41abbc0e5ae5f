"""Define the timed questions of `decode`: the swept quantity, and the work of a call at each value."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from benchmarks.decode.models import LABELS, state_bytes
from benchmarks.decode.programs import Decoder, Work
from benchmarks.ops.candidates import Candidate, Program

CONTEXTS, PREFILL, BATCHES = PARTS = "contexts", "prefill", "batches"

READ, FIRST, GENERATE = "prefill", "first_token", "generate"
"""Passes of the parts `prefill` and `batches`; those of `contexts` are batches."""


class Part(NamedTuple):
    """One sweep; all models take turns at each of its values."""

    name: str
    values: Sequence[int]
    passes: Sequence[str]
    work: Callable[[int, str], Work]
    """the work of a call at a value, in a pass"""

    def candidates(self, decoders: Sequence[Decoder]) -> list[Candidate]:
        """Return the models as candidates, whose inputs are the values themselves."""

        def prepare(decoder: Decoder, value: int, direction: str) -> Program:
            return decoder.program(self.work(value, direction))

        return [Candidate(d.name, LABELS[d.name], "jax", None, partial(prepare, d)) for d in decoders]

    def row(self, decoders: Mapping[str, Decoder], row: dict[str, Any]) -> dict[str, Any]:
        """Add the quantities of decoding to a case of the study; `length` is the swept value."""
        work, seconds = self.work(row["length"], row["pass"]), row["seconds"]
        config = decoders[row["candidate"]].config
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
    """Sweep the length of a context for some batches; time its last `steps` tokens."""
    batch_of = {f"batch {batch}": batch for batch in batches}

    def work(context: int, direction: str) -> Work:
        return Work(batch_of[direction], context - steps, steps, context)

    return Part(CONTEXTS, values, tuple(batch_of), work)


def prefill(lengths: Sequence[int], batch: int) -> Part:
    """Sweep the length of a prompt that is read in one call."""
    return Part(PREFILL, lengths, (READ,), lambda length, _: Work(batch, 0, length, length))


def batches(values: Sequence[int], prompt: int, tokens: int) -> Part:
    """Sweep the batch: read a prompt and make its first token, then `tokens` more."""

    def work(batch: int, direction: str) -> Work:
        reads = direction == FIRST
        return Work(batch, 0 if reads else prompt, prompt if reads else tokens, prompt + tokens)

    return Part(BATCHES, values, (FIRST, GENERATE), work)
