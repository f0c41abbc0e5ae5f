"""Export a language model: ``based-jax export --checkpoint DIR``."""

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from based_jax import command
from based_jax.convert.pretrained import find_directory, load_pretrained, own_tokenizer
from based_jax.data.tokenizers import load_tokenizer
from based_jax.export.directory import expect_free, export_model
from based_jax.export.programs import PLATFORMS, Plan
from based_jax.export.runner import read_manifest
from based_jax.generate.weights import decoding_weights
from based_jax.phases import phase
from based_jax.validate import expect

PROG = "based-jax export"


@dataclasses.dataclass(frozen=True)
class Options:
    """Write a model as programs that run with jax alone, its weights, and run.py, which runs them."""

    checkpoint: str
    """pretrained directory (config.json, weights), a run's directory, or a hub id"""
    out: Path | None = None
    """directory to write, created if needed; default: exported/ next to the weights"""
    platforms: str = ",".join(PLATFORMS)
    """platforms to run on, comma-separated: cpu, cuda"""
    batch_size: int | None = None
    """number of rows of every call; None allows any number"""
    max_length: int = 2048
    """most tokens of a row, prompt included, in models whose state grows with them (attention)"""
    prefill_chunk: int = 128
    """number of prompt tokens that one call reads; prompts are padded to a multiple"""
    decode_chunk: int = 16
    """most tokens that one call makes"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """dtype of the computation; None is the checkpoint's"""
    tokenizer: str | None = None
    """byte, dna, gpt2 (if cached locally), a tokenizers JSON file or its directory,
    instead of the checkpoint's own"""


def main(argv: Sequence[str] | None = None) -> int:
    options = command.parse(Options, argv, prog=PROG)
    chosen: dict[str, Any] = {field.name: getattr(options, field.name) for field in dataclasses.fields(Plan)}
    plan = Plan(**{**chosen, "platforms": tuple(options.platforms.split(","))})
    directory = find_directory(options.checkpoint)
    is_local = Path(options.checkpoint).exists()
    expect(options.out is not None or is_local, "out", None, "a directory for a model from the hub")
    out = options.out or directory / "exported"
    expect_free(out)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer is not None else None
    begin = time.perf_counter()
    with phase("reading the weights", patience=math.inf):
        model, params = load_pretrained(directory, dtype=options.dtype)
        if model.config.dtype != "float32":
            model, params = decoding_weights(model, params, model.config.dtype)
    if tokenizer is None:
        tokenizer = own_tokenizer(directory, model.config.vocab_size)
    with phase("lowering the programs", patience=math.inf):
        export_model(out, model, params, plan, tokenizer)
    print(f"{options.checkpoint} -> {out} in {time.perf_counter() - begin:.1f} s")
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:>13,}  {path.name}")
    print(f"sha256 {read_manifest(out)['sha256']}")
    return 0


if __name__ == "__main__":
    command.run(PROG, main)
