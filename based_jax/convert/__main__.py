"""Convert a language model's directory: ``based-jax convert SRC DST``.

SRC is a directory or a hub id in any form; config.json, the weights, a model card and SRC's tokenizer files
are written to DST, in our form or in that of another checkpoint. See `pretrained` for the forms.
"""

import dataclasses
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from based_jax import command
from based_jax.convert import hub, pretrained
from based_jax.convert.configs import kind
from based_jax.convert.hub import TOKENIZER_FILES
from based_jax.convert.layouts import flatten
from based_jax.convert.model_card import CARD, ModelCard, is_ours
from based_jax.data.tokenizers import GENERATION_FILE, generation_settings
from based_jax.files import read_text, write_json
from based_jax.phases import phase
from based_jax.typing import Params
from based_jax.validate import expect, expect_directory

PROG = "based-jax convert"


@dataclasses.dataclass(frozen=True)
class Options:
    """Convert a checkpoint of the authors, of fla or of transformers to our form, or back to theirs."""

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SRC")]
    """directory with config.json and weights (.safetensors or .bin), or a hub id"""
    target: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DST")]
    """directory to write; created if needed"""
    like: str | None = None
    """write the form of this checkpoint of the same model, such as the one that was fine-tuned (directory or
    hub id), with its tokenizer; default: our config.json and model.safetensors"""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """dtype of the written weights; default: float32, or those of --like"""
    license: str | None = None
    """for the model card: the hub's identifier of a license, such as apache-2.0"""


def main(argv: Sequence[str] | None = None) -> None:
    """Convert and print a short report."""
    options = command.parse(Options, argv, prog=PROG)
    directory, target = pretrained.find_directory(options.source), options.target
    expect_directory("DST", target)
    like = None if options.like is None else pretrained.find_directory(options.like)
    for what, other in (("the source", directory), ("--like", like)):
        is_same = other is not None and target.exists() and target.samefile(other)
        expect(not is_same, "DST", str(target), f"a target other than {what}")
    pretrained.expect_no_run(target)
    fits = options.like is None or (options.dtype is None and options.license is None)
    expect(fits, "dtype and license", (options.dtype, options.license), "neither with --like, which has both")
    config = pretrained.read_config(directory)
    origin = pretrained.FORMAT if config.get("format") == pretrained.FORMAT else kind(config)
    card = card_of(options, config)
    with phase("reading the weights", patience=math.inf):
        model, params = pretrained.load_pretrained(directory)
    with phase("writing the weights", patience=math.inf):
        if options.dtype is not None and options.dtype != "float32":
            params = narrowed(params, options.dtype)
        if options.like is None:  # a README.md of the source replaces the card
            target.mkdir(parents=True, exist_ok=True)
            (target / pretrained.CONFIG).unlink(missing_ok=True)  # see `save_pretrained`
            copy_tokenizer(directory, target)
            settings = generation_settings(directory)  # may be those of a config.json that is not written
            if settings and not (directory / GENERATION_FILE).is_file():
                write_json(target / GENERATION_FILE, settings)
            copy_page(directory, target)
        weights = pretrained.save_pretrained(target, model, params, like=options.like, card=card)
        if like is not None:
            if {file.name for file in tokenizer_files(like)} <= {GENERATION_FILE}:
                copy_tokenizer(directory, target)
            copy_tokenizer(like, target)
            copy_page(directory, target)
    shapes, page = pretrained.language_model_shapes(model.config), target / CARD
    files = [weights, *target.glob("model-*-of-*.safetensors")]
    print(
        f"{options.source} -> {target}\n"
        f"kind        {origin}: {model.config.num_layers} layers {model.config.schedule}\n"
        f"written as  {options.like or 'native'}: config.json, {weights.name}\n"
        f"parameters  {sum(map(math.prod, shapes.values())):,}\n"
        f"dtype       {options.dtype or (options.like and f'as {options.like}') or 'float32'}\n"
        f"bytes       {sum(file.stat().st_size for file in files):,}"
    )
    if page.is_file() and not is_ours(read_text(page)):
        print("README.md   kept as it was, since it was not written here")


def card_of(options: Options, config: Mapping[str, Any]) -> ModelCard:
    """Return the source's model card with the options' additions."""
    card = pretrained.read_card(config)
    if options.license is not None:
        card = dataclasses.replace(card, license=options.license)
    if config.get("format") != pretrained.FORMAT and not Path(options.source).exists():
        card = dataclasses.replace(card, base_model=hub.parse_id(options.source)[0])
    return card


def tokenizer_files(source: Path) -> list[Path]:
    """Return the tokenizer's files in a directory."""
    return [file for pattern in TOKENIZER_FILES for file in source.glob(pattern)]


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files."""
    for file in tokenizer_files(source):
        shutil.copyfile(file, target / file.name)


def copy_page(source: Path, target: Path) -> None:
    """Copy a README.md that based_jax did not write."""
    page = source / CARD
    if page.is_file() and not (target / CARD).exists() and not is_ours(read_text(page)):
        shutil.copyfile(page, target / CARD)


def narrowed(params: Params, dtype: str) -> Params:
    """Cast the parameters to a narrower dtype, on the host."""
    with np.errstate(over="ignore"):  # overflow is reported below, by parameter
        cast = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.dtype(dtype)), params)
    lost = [path for path, leaf in flatten(cast["params"]).items() if not np.isfinite(leaf).all()]
    expect(not lost, "dtype", dtype, f"one with the range for the values of {', '.join(lost[:10])}")
    return cast


if __name__ == "__main__":
    command.run(PROG, main)
