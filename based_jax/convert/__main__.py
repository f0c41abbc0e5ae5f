"""Convert a language model's directory: ``python -m based_jax.convert SRC DST``.

SRC is a directory or a hub id, in the authors' torch format or ours; DST gets config.json and
model.safetensors, which `based_jax.load_pretrained` reads and whose weights have the torch names, and SRC's
tokenizer files.
"""

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax
import tyro
from safetensors import safe_open

from based_jax import command
from based_jax.convert.authors_config import kind
from based_jax.convert.hub import TOKENIZER_FILES
from based_jax.convert.pretrained import (
    FORMAT,
    WEIGHTS,
    find_directory,
    load_pretrained,
    read_config,
    save_pretrained,
)

PROG = "python -m based_jax.convert"


@dataclasses.dataclass(frozen=True)
class Options:
    """Convert a checkpoint to config.json and model.safetensors (float32, torch names)."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SRC")]
    """directory with config.json and weights (.safetensors or .bin), or a hub id"""
    target: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DST")]
    """directory to write; created if need be"""


def main(argv: Sequence[str] | None = None) -> None:
    """Convert and print a short report."""
    options = command.parse(Options, argv, prog=PROG)
    directory = find_directory(options.source)
    if options.target.exists() and options.target.samefile(directory):
        raise ValueError(f"{options.target}: expected a target other than the source")
    config = read_config(directory)
    origin = FORMAT if config.get("format") == FORMAT else kind(config)
    model, params = load_pretrained(directory)
    save_pretrained(options.target, model, params)
    for file in (file for pattern in TOKENIZER_FILES for file in directory.glob(pattern)):
        shutil.copyfile(file, options.target / file.name)
    weights = options.target / WEIGHTS
    with safe_open(weights, "numpy") as file:
        tensors = len(file.keys())
    leaves = jax.tree.leaves(params)
    print(
        f"{options.source} -> {options.target}\n"
        f"kind        {origin}: {model.config.num_layers} layers {model.config.schedule}\n"
        f"tensors     {tensors}\n"
        f"parameters  {sum(leaf.size for leaf in leaves):,}\n"
        f"dtype       {', '.join(sorted({str(leaf.dtype) for leaf in leaves}))}\n"
        f"bytes       {weights.stat().st_size:,}"
    )


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
