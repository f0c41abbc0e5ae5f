"""Convert a language model's directory: ``python -m based_jax.convert SRC DST``.

SRC is a directory or a hub id, in the authors' form or ours; DST gets config.json, the weights in one file,
and SRC's tokenizer files. See `pretrained` for the two forms.
"""

import dataclasses
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from based_jax import command
from based_jax.convert import pretrained
from based_jax.convert.authors_config import kind
from based_jax.convert.hub import TOKENIZER_FILES
from based_jax.convert.layouts import flatten, torch_shapes
from based_jax.phases import phase
from based_jax.typing import Params
from based_jax.validate import expect

PROG = "python -m based_jax.convert"


@dataclasses.dataclass(frozen=True)
class Options:
    """Convert a checkpoint between the authors' form and ours; the weights keep their torch names."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SRC")]
    """directory with config.json and weights (.safetensors or .bin), or a hub id"""
    target: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DST")]
    """directory to write; created if need be"""
    to: Literal["native", "authors"] = "native"
    """native: our config.json and model.safetensors; authors: config.json and pytorch_model.bin as the
    authors' torch code loads them"""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """of the written weights"""


def main(argv: Sequence[str] | None = None) -> None:
    """Convert and print a short report."""
    options = command.parse(Options, argv, prog=PROG)
    directory = pretrained.find_directory(options.source)
    if options.target.exists() and options.target.samefile(directory):
        raise ValueError(f"{options.target}: expected a target other than the source")
    config = pretrained.read_config(directory)
    origin = pretrained.FORMAT if config.get("format") == pretrained.FORMAT else kind(config)
    with phase("reading the weights", patience=math.inf):
        model, params = pretrained.load_pretrained(directory)
    with phase("writing the weights", patience=math.inf):
        if options.dtype != "float32":
            params = narrowed(params, options.dtype)
        weights = pretrained.save_pretrained(options.target, model, params, to=options.to)
    for file in (file for pattern in TOKENIZER_FILES for file in directory.glob(pattern)):
        shutil.copyfile(file, options.target / file.name)
    shapes = pretrained.language_model_shapes(model.config)
    rules = pretrained.language_model_rules(model.config)
    tensors = len(torch_shapes(rules, shapes)) + model.config.tie_embeddings
    print(
        f"{options.source} -> {options.target}\n"
        f"kind        {origin}: {model.config.num_layers} layers {model.config.schedule}\n"
        f"written as  {options.to}: config.json, {weights.name}\n"
        f"tensors     {tensors}\n"
        f"parameters  {sum(map(math.prod, shapes.values())):,}\n"
        f"dtype       {options.dtype}\n"
        f"bytes       {weights.stat().st_size:,}"
    )


def narrowed(params: Params, dtype: str) -> Params:
    """The parameters in a narrower dtype, on the host."""
    with np.errstate(over="ignore"):  # found below, by name
        cast = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.dtype(dtype)), params)
    lost = [path for path, leaf in flatten(cast["params"]).items() if not np.isfinite(leaf).all()]
    expect(not lost, "dtype", dtype, f"one with room for the values of {', '.join(lost[:10])}")
    return cast


if __name__ == "__main__":
    command.run(PROG, lambda: main(sys.argv[1:]))
