"""What a language model's run would read, without reading it: the part of a dry run that is about data."""

import shlex
from pathlib import Path

from based_jax import data
from based_jax.data.shards.manifest import FILE, Manifest
from based_jax.data.shards.pairs import TokenPairs, find_pairs
from based_jax.data.shards.reader import TokenShards
from based_jax.data.shards.specs import TOKENS, shard_directory
from based_jax.training.banner import describe_tokens
from based_jax.training.lm_config import LMConfig
from based_jax.training.lm_data import expect_flags_apply, sources
from based_jax.training.recipes import find_file, read_recipe


def plan_data(config: LMConfig) -> dict[str, str]:
    """What a run would read, for people, and for shards that are missing the command that makes them.

    Opens shards and reads no text. ValueError: flags that do not apply, or shards that are not whole.
    """
    expect_flags_apply(config)
    parts, rows = [], dict[str, str]()
    for spec in sources(config):
        directory = shard_directory(spec)
        if directory is None:
            parts.append(f"{spec}: text, to be read into memory")
        elif find_pairs(directory):
            parts.append(describe_tokens(spec, TokenPairs.open(directory, "train", None))["data"])
        elif (directory / FILE).is_file():
            parts.append(describe_tokens(spec, TokenShards.open(directory))["data"])
        else:
            parts.append(f"{spec}: no token shards yet")
            rows["make them"] = _command_for(config, directory)
    return {"data": "; ".join(parts), **rows}


def planned_vocab_size(config: LMConfig) -> int:
    """Tokens of the tokenizer of a run that begins with no checkpoint; its shards may be missing yet."""
    directories = filter(None, map(shard_directory, sources(config)))
    found = next((directory for directory in directories if (directory / FILE).is_file()), None)
    if config.tokenizer is None and found is not None:
        return Manifest.read(found).tokenizer.vocab_size
    return data.find_vocab_size(config.tokenizer or "byte")


def _command_for(config: LMConfig, directory: Path) -> str:
    """The command that makes missing shards: that of the recipe, where they are its own."""
    if config.recipe is not None:
        recipe = read_recipe(find_file(Path(config.recipe)), LMConfig)
        if recipe.shards and recipe.flags.get("data") == f"{TOKENS}{directory}":
            return recipe.shards
    tokenizer, out = shlex.quote(config.tokenizer or "byte"), shlex.quote(str(directory))
    command = f"python -m train.tokenize --data TEXT --tokenizer {tokenizer}"
    return f"{command} --held-out-bytes {config.held_out_bytes} --out {out}"
