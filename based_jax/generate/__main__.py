"""Continue a text: ``python -m based_jax.generate --checkpoint DIR --prompt TEXT``."""

import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import jax

from based_jax import command
from based_jax.convert.pretrained import find_directory, load_pretrained
from based_jax.data.tokenizers import Tokenizer, load_tokenizer
from based_jax.generate.sampling import Sampler
from based_jax.generate.text import StopTexts, TextStream
from based_jax.generate.weights import decoding_weights
from based_jax.models.presets import BYTE_VOCAB
from based_jax.phases import phase
from based_jax.validate import expect, expect_integer

PROG = "python -m based_jax.generate"


@dataclasses.dataclass(frozen=True)
class Options:
    """Continue a text with a language model; the text goes to stdout, the speed to stderr."""

    checkpoint: str
    """pretrained directory (config.json, weights, tokenizer), a finished run's directory, or a hub id"""
    prompt: str
    """text to continue; "" begins a new document"""
    max_new_tokens: int = 200
    """tokens to make at most; the end of the document ends it earlier"""
    temperature: float = 0.8
    """0 takes the most likely token; larger is more random"""
    top_k: int | None = None
    """sample among this many most likely tokens"""
    top_p: float | None = 0.95
    """sample among the fewest most likely tokens whose probabilities sum to this, in (0, 1]"""
    min_p: float | None = None
    """sample among tokens with at least this share of the most likely one's probability, in (0, 1]"""
    repetition_penalty: float = 1.0
    """above 1: tokens that are in the text already become less likely"""
    seed: int = 0
    """of the sampling"""
    stop: tuple[str, ...] = ()
    """texts that end the continuation; they are not printed"""
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally) or a tokenizers JSON file, instead of the checkpoint's own"""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """what weights are stored and multiplied in; None is the checkpoint's"""
    stream: bool = True
    """print while tokens are made; else all at the end"""

    @property
    def sampler(self) -> Sampler:
        """How tokens are chosen."""
        return Sampler(self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = command.parse(Options, argv, prog=PROG)
    sampler = dataclasses.asdict(options.sampler)  # says what is wrong before anything is loaded
    StopTexts(options.stop)
    expect_integer("max_new_tokens", options.max_new_tokens, 1)
    expect(0 <= options.seed < 2**32, "seed", options.seed, "an integer in [0, 2^32)")

    directory = find_directory(options.checkpoint)
    with phase("reading the weights", patience=math.inf):
        model, params = load_pretrained(directory)
        if options.dtype is not None:
            model, params = decoding_weights(model, params, options.dtype)
    tokenizer = find_tokenizer(directory, options.tokenizer, model.config.vocab_size)
    pieces = TextStream(
        model, params, tokenizer, options.prompt,
        stop=options.stop, max_new_tokens=options.max_new_tokens, rng=jax.random.key(options.seed), **sampler,
    )  # fmt: skip
    try:
        return show(options.prompt, pieces, options.stream)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def show(prompt: str, pieces: TextStream, as_they_come: bool) -> int:
    """Print the text, then the speed; an interrupt ends the text where it is."""
    begin, first, held, status = time.perf_counter(), None, [prompt], 0
    try:
        for piece in _after_compiling(pieces):
            first = (time.perf_counter(), pieces.tokens) if first is None else first
            held.append(piece)
            if as_they_come:
                print("".join(held), end="", flush=True)
                held = []
    except KeyboardInterrupt:
        status = 130
    end = time.perf_counter()
    print("".join(held), flush=True)
    ready, before = (end, pieces.tokens) if first is None else first
    rate = f", then {(pieces.tokens - before) / (end - ready):.1f} tokens/s" if pieces.tokens > before else ""
    note = ", interrupted" if status else ""
    print(f"{pieces.tokens} tokens{note}: first after {ready - begin:.2f} s{rate}", file=sys.stderr)
    return status


def _after_compiling(pieces: Iterable[str]) -> Iterator[str]:
    """The pieces; what the first waits for is reported."""
    rest = iter(pieces)
    with phase("compiling for this prompt's length; kept for the next time", patience=math.inf):
        first = next(rest, None)
    if first is not None:
        yield first
        yield from rest


def find_tokenizer(directory: Path, spec: str | None, vocab_size: int) -> Tokenizer:
    """The tokenizer asked for, else the one beside the model, else bytes if the vocabulary has their size."""
    if spec is not None:
        return load_tokenizer(spec)
    tokenizer = own_tokenizer(directory, vocab_size)
    if tokenizer is None:
        raise ValueError(f"tokenizer = None: expected one to be given: {directory} has no tokenizer.json")
    return tokenizer


def own_tokenizer(directory: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer beside a model, else bytes if the vocabulary has their size, else None."""
    if (directory / "tokenizer.json").is_file():
        return load_tokenizer(directory)
    return load_tokenizer("byte") if vocab_size == BYTE_VOCAB else None


if __name__ == "__main__":
    command.run(PROG, main)
