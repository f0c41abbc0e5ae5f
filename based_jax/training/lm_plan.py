"""Describe the data of a language-model run without reading them, for a dry run."""

import shlex
from pathlib import Path

from based_jax import data
from based_jax.data.shards.manifest import FILE, Manifest
from based_jax.data.shards.reader import TokenShards
from based_jax.data.shards.specs import TOKENS, shard_directory
from based_jax.training.banner import describe_tokens
from based_jax.training.lm_config import LMConfig
from based_jax.training.lm_data import expect_flags_apply, sources
from based_jax.training.recipes import find_file, read_recipe


def plan_data(config: LMConfig) -> dict[str, str]:
    """Describe what a run would read, and the command that makes shards that are missing.

    Opens shards but reads no text. ValueError: flags that do not apply, or incomplete shards.
    """
    expect_flags_apply(config)
    parts, rows = [], dict[str, str]()
    for spec in sources(config):
        directory = shard_directory(spec)
        if directory is None:
            parts.append(f"{spec}: text, to be read into memory")
        elif (directory / FILE).is_file():
            parts.append(describe_tokens(spec, TokenShards.open(directory))["data"])
        else:
            parts.append(f"{spec}: no token shards yet")
            rows["make them"] = _command_for(config, directory)
    return {"data": "; ".join(parts), **rows}


def planned_vocab_size(config: LMConfig) -> int:
    """Return the vocabulary size of a run without `--init-from`; its shards need not exist yet."""
    directories = filter(None, map(shard_directory, sources(config)))
    found = next((directory for directory in directories if (directory / FILE).is_file()), None)
    if config.tokenizer is None and found is not None:
        return Manifest.read(found).tokenizer.vocab_size
    return data.find_vocab_size(config.tokenizer or "byte")


def _command_for(config: LMConfig, directory: Path) -> str:
    """Return the command that makes missing shards: the recipe's, if they are its data."""
    if config.recipe is not None:
        recipe = read_recipe(find_file(Path(config.recipe)), LMConfig)
        if recipe.shards and recipe.flags.get("data") == f"{TOKENS}{directory}":
            return recipe.shards
    tokenizer, out = shlex.quote(config.tokenizer or "byte"), shlex.quote(str(directory))
    command = f"based-jax train tokenize --data TEXT --tokenizer {tokenizer}"
    return f"{command} --held-out-bytes {config.held_out_bytes} --out {out}"
