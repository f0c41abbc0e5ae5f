"""Open the data of a language-model run, text, token shards or a mixture, or plan this for a dry run."""

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from based_jax import data
from based_jax.data.documents import FileReport
from based_jax.data.packed import Mixture, TokenStream, parse_mixture
from based_jax.data.reading import UnreadableCorpus
from based_jax.data.shards.manifest import FILE, Manifest, shard_file
from based_jax.data.shards.reader import (
    TOKENS,
    expect_no_text_flags,
    load_data_tokenizer,
    open_tokens,
    shard_directory,
)
from based_jax.data.sources import expect_outside
from based_jax.training.lm_config import LMConfig
from based_jax.training.recipes import read_recipe
from based_jax.training.text_run import TextRunConfig
from based_jax.validate import expect

_BATCHES = 2  # that a plan draws


class RunData(NamedTuple):
    """The training and held-out data of a run, or of one source."""

    training: TokenStream | Mixture
    held_out: TokenStream | Mixture
    summary: dict[str, str]  # human-readable
    files: Sequence[FileReport] = ()  # about the files that were read as text


def open_data(config: TextRunConfig, tokenizer: data.Tokenizer) -> RunData:
    """Read the text that `config.data` names, or open its shards.

    Raises:
        ValueError, OSError: no such data, shards of another tokenizer, flags that do not apply to them, or no
            held-out data for the evaluations of the run.
    """
    weights = parse_mixture(config.data)
    _expect_flags_apply(config)
    if weights is None:
        return _open(config.data, config, tokenizer)
    opened: list[Any] = [_open(spec, config, tokenizer) for spec in weights]  # of streams, not mixtures
    names, shares = _short_names(list(weights)), tuple(weights.values())
    training = Mixture(names, tuple(source.training for source in opened), shares)
    held_out = Mixture(names, tuple(source.held_out for source in opened), shares)
    summaries = [source.summary for source in opened]
    rows = {row: "" for summary in summaries for row in summary}
    for row in rows:
        rows[row] = "; ".join(
            f"{share:.1%} {summary[row]}" if row == "data" else summary[row]
            for share, summary in zip(training.shares, summaries, strict=True)
            if row in summary
        )
    return RunData(training, held_out, rows, [file for source in opened for file in source.files])


def data_tokenizer(config: TextRunConfig) -> data.Tokenizer:
    """Return the tokenizer of a run without `--init-from`: that of its shards, else `--tokenizer`."""
    return load_data_tokenizer(_sources(config), config.tokenizer)


def _sources(config: TextRunConfig) -> list[str]:
    return list(parse_mixture(config.data) or [config.data])


def _open(spec: str, config: TextRunConfig, tokenizer: data.Tokenizer) -> RunData:
    if (directory := shard_directory(spec)) is not None:
        return _open_shards(directory, config, tokenizer)
    is_text = not Path(spec, shard_file("train", 0)).is_file()
    expect(is_text, "data", spec, f"text; these are token shards: --data {TOKENS}{spec}")
    expect_outside("workdir", config.workdir, spec)
    corpus = data.load_documents(spec, config.include, options=config.reading)
    limits = {"max_bytes": config.held_out_bytes, "held_out_names": config.held_out_names}
    sides = data.split_documents(corpus.documents, fraction=config.held_out, **limits)
    training, held_out = (data.PackedTokens.from_documents(side, tokenizer) for side in sides)
    return RunData(training, held_out, corpus.describe(), corpus.files)


def _open_shards(directory: Path, config: TextRunConfig, tokenizer: data.Tokenizer) -> RunData:
    training, held_out = (open_tokens(directory, side, tokenizer) for side in ("train", "held_out"))
    has_sides = len(training) > 0 and (len(held_out) > 0 or config.eval_every == 0)
    expected = "shards with a training side, and a held-out side or --eval-every 0"
    expect(has_sides, "data", f"{TOKENS}{directory}", expected)
    return RunData(training, held_out, training.describe())


def _expect_flags_apply(config: TextRunConfig) -> None:
    if all(map(shard_directory, _sources(config))):
        expect_no_text_flags(config)


def _short_names(specs: Sequence[str]) -> tuple[str, ...]:
    """Return the last components of the specs' paths if they are unique, else the specs."""
    short = tuple(spec.removeprefix(TOKENS).rstrip("/").rpartition("/")[2] for spec in specs)
    return short if len(set(short)) == len(short) and all(short) else tuple(specs)


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
    _expect_flags_apply(config)
    directories = {spec: found for spec in _sources(config) if (found := shard_directory(spec)) is not None}
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
    directories = filter(None, map(shard_directory, _sources(config)))
    found = next((directory for directory in directories if (directory / FILE).is_file()), None)
    if config.tokenizer is None and found is not None:
        return Manifest.read(found).tokenizer.vocab_size
    return data.find_vocab_size(config.tokenizer or "byte")


def _command_for(config: LMConfig, directory: Path) -> str:
    """Return the command that makes missing shards: the recipe's, if they are its data."""
    if config.recipe is not None:
        recipe = read_recipe(config.recipe, LMConfig)
        if recipe.shards and recipe.flags.get("data") == f"{TOKENS}{directory}":
            return recipe.shards
    tokenizer, out = shlex.quote(config.tokenizer or "byte"), shlex.quote(str(directory))
    command = f"based-jax train tokenize --data TEXT --tokenizer {tokenizer}"
    return f"{command} --held-out-bytes {config.held_out_bytes} --out {out}"
