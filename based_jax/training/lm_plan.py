"""Read the data of a language-model run as the run will, for a dry run."""

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from based_jax import data
from based_jax.data.corpus import UnreadableCorpus
from based_jax.data.report import FileReport
from based_jax.data.shards.manifest import FILE, Manifest
from based_jax.data.shards.reader import TOKENS, shard_directory
from based_jax.training.lm_config import LMConfig
from based_jax.training.lm_data import data_tokenizer, expect_flags_apply, open_data, sources
from based_jax.training.recipes import find_file, read_recipe

_BATCHES = 2


class DataPlan(NamedTuple):
    """What a run would read."""

    rows: dict[str, str]  # human-readable
    files: Sequence[FileReport] = ()  # about the files of its text
    can_run: bool = True


def plan_data(config: LMConfig, length: int, tokenizer: data.Tokenizer | None = None) -> DataPlan:
    """Open the data and draw the first batches; report what would stop the run.

    If shards are missing, the plan has the command that makes them, and nothing is read.

    Args:
        length: tokens of a row.
        tokenizer: that of `init_from`; None: the data's own, or that of the flag.

    Raises:
        ValueError: flags that do not apply.
    """
    expect_flags_apply(config)
    directories = {spec: found for spec in sources(config) if (found := shard_directory(spec)) is not None}
    missing = {spec: found for spec, found in directories.items() if not (found / FILE).is_file()}
    if missing:
        rows = {"data": "; ".join(f"{spec}: no token shards yet" for spec in missing)}
        return DataPlan({**rows, "make them": _command_for(config, next(iter(missing.values())))})
    try:
        found = open_data(config, tokenizer or data_tokenizer(config))
        shape = {"length": length, "batch_size": config.batch_size}
        batches = data.train_iterator(
            found.training, seed=config.seed, cross_documents=config.cross_documents, **shape
        )
        count = len([*itertools.islice(batches, _BATCHES)])
    except (ValueError, OSError, ImportError) as error:
        files = error.files if isinstance(error, UnreadableCorpus) else ()
        return DataPlan({"stops it": str(error)}, files, False)
    drawn = f"drew the first {count} of {config.batch_size} x {length} tokens"
    return DataPlan({**found.summary, "batches": drawn}, found.files)


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
