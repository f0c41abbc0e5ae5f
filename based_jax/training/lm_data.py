"""What a language model's run reads: text in memory, token shards in files, or a mixture of such sources."""

import dataclasses
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from based_jax import data
from based_jax.data.shards.manifest import FILE, Manifest
from based_jax.data.shards.mixtures import Mixture, parse_mixture
from based_jax.data.shards.reader import TokenShards
from based_jax.data.shards.specs import TOKENS, expect_same_tokenizer, load_data_tokenizer, shard_directory
from based_jax.data.streams import TokenStream
from based_jax.training.banner import describe_data, describe_shards
from based_jax.training.lm_config import LMConfig
from based_jax.training.recipes import find_file, read_recipe
from based_jax.validate import expect

_OF_TEXT = ("include", "held_out", "held_out_bytes", "held_out_names")


class RunData(NamedTuple):
    """The two sides of a run's data."""

    training: TokenStream | Mixture
    held_out: TokenStream | Mixture
    summary: dict[str, str]  # for people


class _Source(NamedTuple):
    """A source that is no mixture."""

    training: TokenStream
    held_out: TokenStream
    summary: dict[str, str]


def open_data(config: LMConfig, tokenizer: data.Tokenizer) -> RunData:
    """Read the text that `config.data` names, or open its shards.

    Raises:
        ValueError, OSError: no such data, shards of another tokenizer, flags that do not apply to them, or no
            held-out side for the evaluations of the run.
    """
    weights = parse_mixture(config.data)
    _expect_flags_apply(config)
    if weights is None:
        return RunData(*_open(config.data, config, tokenizer))
    sources = [_open(spec, config, tokenizer) for spec in weights]
    names, shares = _short_names(list(weights)), tuple(weights.values())
    training = Mixture(names, tuple(source.training for source in sources), shares)
    held_out = Mixture(names, tuple(source.held_out for source in sources), shares)
    summaries = [source.summary for source in sources]
    rows = {row: "" for summary in summaries for row in summary}
    for row in rows:
        rows[row] = "; ".join(
            f"{share:.1%} {summary[row]}" if row == "data" else summary[row]
            for share, summary in zip(training.shares, summaries, strict=True)
            if row in summary
        )
    return RunData(training, held_out, rows)


def data_tokenizer(config: LMConfig) -> data.Tokenizer:
    """The tokenizer of a run that begins with no checkpoint: that of its shards, else `--tokenizer`."""
    return load_data_tokenizer(_specs(config), config.tokenizer)


def plan_data(config: LMConfig) -> dict[str, str]:
    """What a run would read, for people, and for shards that are missing the command that makes them.

    Opens shards and reads no text. ValueError: flags that do not apply, or shards that are not whole.
    """
    _expect_flags_apply(config)
    parts, rows = [], dict[str, str]()
    for spec in _specs(config):
        directory = shard_directory(spec)
        if directory is None:
            parts.append(f"{spec}: text, to be read into memory")
        elif (directory / FILE).is_file():
            parts.append(describe_shards(spec, TokenShards.open(directory))["data"])
        else:
            parts.append(f"{spec}: no token shards yet")
            rows["make them"] = _command_for(config, directory)
    return {"data": "; ".join(parts), **rows}


def planned_vocab_size(config: LMConfig) -> int:
    """Tokens of the tokenizer of a run that begins with no checkpoint; its shards may be missing yet."""
    directories = filter(None, map(shard_directory, _specs(config)))
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
    tokenizer = shlex.quote(config.tokenizer or "byte")
    return f"python -m train.tokenize --data TEXT --tokenizer {tokenizer} --out {shlex.quote(str(directory))}"


def tokens_per_byte(stream: TokenStream | Mixture) -> float | None:
    """Tokens that a byte of a run's text is on average; None if the bytes are not known."""
    if not isinstance(stream, Mixture):
        return len(stream) / stream.num_bytes if stream.num_bytes else None
    parts = list(zip(stream.shares, stream.parts, strict=True))
    if not all(part.num_bytes for _, part in parts):
        return None
    return 1 / sum(share * part.num_bytes / len(part) for share, part in parts)


def held_out_metrics(
    stream: TokenStream | Mixture, measure: Callable[[TokenStream], tuple[float, float]]
) -> dict[str, float]:
    """Loss, perplexity and bits per byte of held-out text, and the loss of each part of a mixture.

    `measure` returns the sum of a stream's losses (nats) and the number of its targets.
    """
    parts = [measure(part) for part in (stream.parts if isinstance(stream, Mixture) else (stream,))]
    nats, targets = (sum(values) for values in zip(*parts, strict=True))
    metrics = {"eval_loss": nats / targets, "eval_perplexity": math.exp(min(nats / targets, 700.0))}
    if stream.num_bytes:
        metrics["eval_bits_per_byte"] = nats / math.log(2) / stream.num_bytes
    if isinstance(stream, Mixture):
        each = zip(stream.names, parts, strict=True)
        metrics |= {f"eval_loss/{name}": own / count for name, (own, count) in each}
    return metrics


def _specs(config: LMConfig) -> list[str]:
    return list(parse_mixture(config.data) or [config.data])


def _open(spec: str, config: LMConfig, tokenizer: data.Tokenizer) -> _Source:
    if (directory := shard_directory(spec)) is not None:
        return _open_shards(directory, config, tokenizer)
    corpus = data.load_documents(spec, config.include)
    side = {"max_bytes": config.held_out_bytes, "names": config.held_out_names}
    sides = data.split_documents(corpus.documents, fraction=config.held_out, **side)
    training, held_out = (data.PackedTokens.from_documents(side, tokenizer) for side in sides)
    return _Source(training, held_out, describe_data(corpus))


def _open_shards(directory: Path, config: LMConfig, tokenizer: data.Tokenizer) -> _Source:
    training, held_out = (TokenShards.open(directory, side) for side in ("train", "held_out"))
    expect_same_tokenizer(training, tokenizer)
    has_sides = len(training) > 0 and (len(held_out) > 0 or config.eval_every == 0)
    expected = "shards with a training side, and a held-out side or --eval-every 0"
    expect(has_sides, "data", f"{TOKENS}{directory}", expected)
    return _Source(training, held_out, describe_shards(f"{TOKENS}{directory}", training))


def _expect_flags_apply(config: LMConfig) -> None:
    """Check that flags which say how text is read are given only where text is read."""
    if any(shard_directory(spec) is None for spec in _specs(config)):
        return
    defaults = {field.name: field.default for field in dataclasses.fields(LMConfig)}
    for name in _OF_TEXT:
        value = getattr(config, name)
        expected = (
            f"no such flag with --data {config.data}: python -m train.tokenize chose what its shards hold"
        )
        expect(value == defaults[name], name, value, expected)


def _short_names(specs: Sequence[str]) -> tuple[str, ...]:
    """The last parts of the specs' paths where these differ, else the specs."""
    short = tuple(spec.removeprefix(TOKENS).rstrip("/").rpartition("/")[2] for spec in specs)
    return short if len(set(short)) == len(short) and all(short) else tuple(specs)
