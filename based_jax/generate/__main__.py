"""Continue a text: ``based-jax generate --checkpoint DIR --prompt TEXT``."""

import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import jax
import tyro

from based_jax import command
from based_jax.convert.pretrained import find_directory, find_tokenizer, load_pretrained
from based_jax.files import is_text
from based_jax.generate.sampling import Sampler
from based_jax.generate.text import StopTexts, TextStream
from based_jax.generate.weights import decoding_weights
from based_jax.phases import phase
from based_jax.validate import expect, expect_integer

PROG = "based-jax generate"


@dataclasses.dataclass(frozen=True)
class Options:
    """Continue a text with a language model; the text goes to stdout, the speed to stderr."""

    checkpoint: str
    """pretrained directory (config.json, weights, tokenizer), a run's directory, or a hub id"""
    prompt: str
    """text to continue; "" begins a new document"""
    max_new_tokens: int = 200
    """most tokens to generate; the end of the document ends the text earlier"""
    sampler: Annotated[Sampler, tyro.conf.arg(name="")] = Sampler(temperature=0.8, top_p=0.95)  # noqa: RUF009
    seed: int = 0
    """seed of the sampling"""
    stop: tuple[str, ...] = ()
    """texts that end the continuation; they are not printed"""
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory,
    instead of the checkpoint's own"""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """dtype in which weights are stored and multiplied; None is the checkpoint's"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = command.parse(Options, argv, prog=PROG)
    # Check the options before anything is loaded.
    StopTexts(options.stop)
    for name, text in (("prompt", options.prompt), *(("stop", text) for text in options.stop)):
        expect(is_text(text), name, text, "a text in UTF-8")
    expect_integer("max_new_tokens", options.max_new_tokens, 1)
    expect(0 <= options.seed < 2**32, "seed", options.seed, "an integer in [0, 2^32)")

    directory = find_directory(options.checkpoint)
    with phase("reading the weights", patience=math.inf):
        model, params = load_pretrained(directory)
        if options.dtype is not None:
            model, params = decoding_weights(model, params, options.dtype)
    tokenizer = find_tokenizer(directory, options.tokenizer, model.config.vocab_size)
    ends = {"stop": options.stop, "max_new_tokens": options.max_new_tokens}
    rng, settings = jax.random.key(options.seed), dataclasses.asdict(options.sampler)
    chunks = TextStream(model, params, tokenizer, options.prompt, **ends, rng=rng, **settings)
    try:
        return show(options.prompt, chunks)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def show(prompt: str, chunks: TextStream) -> int:
    """Print the text as it comes, then the speed; an interrupt ends the text early."""
    begin, first, status = time.perf_counter(), None, 0
    try:
        for chunk in _after_compiling(chunks):
            if first is None:
                first = time.perf_counter(), chunks.tokens
                print(prompt, end="")
            print(chunk, end="", flush=True)
    except KeyboardInterrupt:
        status = 130
    end = time.perf_counter()
    print(prompt if first is None else "", flush=True)
    ready, before = (end, chunks.tokens) if first is None else first
    rate = f", then {(chunks.tokens - before) / (end - ready):.1f} tokens/s" if chunks.tokens > before else ""
    note = ", interrupted" if status else ""
    print(f"{chunks.tokens} tokens{note}: first after {ready - begin:.2f} s{rate}", file=sys.stderr)
    return status


def _after_compiling(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the chunks; report progress while the first one compiles."""
    rest = iter(chunks)
    with phase("compiling for this prompt's length; kept for the next time", patience=math.inf):
        first = next(rest, None)
    if first is not None:
        yield first
        yield from rest


if __name__ == "__main__":
    command.run(PROG, main)
