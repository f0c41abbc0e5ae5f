"""Measure everything on a recall card, of a checkpoint or of a callable of any library.

    name, vocab_size, length, examples, seed
            what was measured; length is the longest
    model   {"source"}; of a checkpoint also "layers" and "parameters"
    mqar    list of {"length", "pairs", "accuracy", "stderr", "perplexity"} (Zoology, section 4.1)
    hits    {"source", "all", "hits", "other", "gap"}: AR hits (Zoology, section 3.1) and other tokens, each
            {"tokens", "share", "loss", "perplexity"}; gap is the loss on others minus that on hits, in nats
    probe   list of {"length", "pairs", "accuracy", "perplexity", "filler_perplexity"} (Zoology, appendix G)
    state   list of {"length", "bytes", "accuracy"}; accuracy is the mean over the pairs of mqar
    parts   {"accuracy", "by_pairs", "without"}: mean accuracy over the cells of mqar, and by pairs; "without"
            lists the same for the model without each part, with "part", "layers", "kept" (its share of the
            whole model's accuracy) and "role"

An entry that cannot be measured is {"not_measured": reason}.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from based_jax.evals.card import measures
from based_jax.evals.card.measures import Cell
from based_jax.evals.card.subject import StateBytes, Subject, of_callable, of_checkpoint
from based_jax.evals.label_scores import LabelScorer, LogitsFn
from based_jax.validate import UINT32_MAX, expect, expect_integer

PAIRS = (2, 4, 8, 16, 32, 64)
EXAMPLES = 100
SEED = 1 << 31
"""Outside the seeds from which `train mqar` draws its data."""

CARRIES, BYPASSED = 0.5, 0.95
"""Shares of the accuracy that are left without a part: below the first it carries recall, above the second it
is bypassed."""

_NOT_CAUSAL = "the logits change with later tokens, or from call to call: expected a causal model"
_SECTIONS = ("mqar", "hits", "probe", "state", "parts")
_LOG = logging.getLogger(__name__)

RecallCard = dict[str, Any]


def recall_card(
    model: LogitsFn | str | os.PathLike[str],
    *,
    vocab_size: int | None = None,
    name: str | None = None,
    lengths: Sequence[int] | None = None,
    pairs: Sequence[int] = PAIRS,
    examples: int = EXAMPLES,
    filler: int = 0,
    text: Int[np.ndarray, " T"] | None = None,
    state_bytes: StateBytes | None = None,
    parts: Mapping[str, LogitsFn] | None = None,
    batch_size: int | None = None,
    seed: int = SEED,
) -> RecallCard:
    """Measure the recall of a causal model; return its card, JSON values under the keys of this module.

    Args:
        model: a callable of any library, int32 tokens (B, N) -> logits (B, N, V), preferably compiled;
            or what `load_pretrained` opens: a checkpoint's directory or a hub id.
        vocab_size: of a callable: tokens are below it.
        name: title of the card; default: the directory's name, or "model".
        lengths: tokens per row, even numbers below `vocab_size`. Default: 64, 128 and 256; of a checkpoint
            its training context up to 256, a half and a quarter of it.
        pairs: key-value pairs per row; only those with 4 * pairs <= length are measured.
        examples: rows of each cell.
        filler: the probe's token between queries, for instance that of a newline.
        text: tokens (T,) in which AR hits, all repeats, are compared with other tokens; without it, a
            synthetic stream.
        state_bytes: of a callable: length -> bytes of the state of one sequence.
        parts: of a callable: part -> the same model with this part switched off.
        batch_size: rows per call.
        seed: of the data.

    Raises:
        TypeError, ValueError: an argument out of range, or a callable whose output is not logits.
        FileNotFoundError: no such checkpoint.
    """
    if isinstance(model, str | os.PathLike):
        for argument, value in (("vocab_size", vocab_size), ("state_bytes", state_bytes), ("parts", parts)):
            expect(value is None, argument, value, "None with a checkpoint, which has its own")
        subject = of_checkpoint(model)
    else:
        expect_integer("vocab_size", vocab_size, 4)
        subject = of_callable(model, vocab_size or 0, state_bytes, parts)
    lengths = subject.lengths if lengths is None else lengths
    _expect_cells(lengths, pairs)
    expect_integer("examples", examples, 2)
    expect_integer("filler", filler, 0, subject.vocab_size - 1)
    expect_integer("seed", seed, 0, UINT32_MAX)
    longest = max(lengths)

    def scorer_of(apply_fn: LogitsFn) -> LabelScorer:
        return LabelScorer(apply_fn, longest, subject.vocab_size, batch_size=batch_size)

    def score_cells(scorer: LabelScorer) -> list[Cell]:
        return measures.mqar(scorer, lengths, pairs, examples, seed)

    scorer = scorer_of(subject.apply_fn)
    card: RecallCard = {"name": name or subject.name, "vocab_size": subject.vocab_size, "length": longest}
    card |= {"examples": examples, "seed": seed, "model": subject.facts}
    if not measures.is_causal(scorer):
        return {**card, **dict.fromkeys(_SECTIONS, _not_measured(_NOT_CAUSAL))}
    card["mqar"] = _measured("MQAR", lambda: score_cells(scorer))
    cells = card["mqar"] if isinstance(card["mqar"], list) else []
    largest = max((cell["pairs"] for cell in cells if cell["length"] == longest), default=min(pairs))
    source = "text" if text is not None else f"synthetic stream of {largest} pairs"
    stream = subject.vocab_size, longest, largest, examples, seed

    def rows() -> np.ndarray:
        return measures.stream_rows(*stream) if text is None else measures.text_rows(text, longest)

    card["hits"] = {"source": source, **_measured(source, lambda: measures.hits(scorer, rows()))}
    probed = longest, pairs, examples, seed, filler
    card["probe"] = _measured("recall probe", lambda: measures.recall_probe(scorer, *probed))
    card["state"] = _states(subject, cells)
    without = {
        part: _measured(f"without {part}", lambda f=apply_fn: score_cells(scorer_of(f)))
        for part, (apply_fn, _) in subject.parts.items()
        if cells
    }
    card["parts"] = _parts(subject, cells, without)
    return card


def _expect_cells(lengths: Sequence[int], pairs: Sequence[int]) -> None:
    expect(len(lengths) > 0 and len(pairs) > 0, "lengths, pairs", (lengths, pairs), "at least one of each")
    for length in lengths:
        expect_integer("lengths", length, 2)
        expect(length % 2 == 0, "lengths", length, "even numbers")
    for count in pairs:
        expect_integer("pairs", count, 1)


def _not_measured(reason: str) -> dict[str, str]:
    return {"not_measured": reason}


def _measured(title: str, run: Callable[[], Any]) -> Any:
    """Return the result of `run`, or why there is none."""
    _LOG.info("%s", title)
    try:
        found = run()
    except ValueError as error:
        return _not_measured(str(error))
    return found or _not_measured(
        "no pairs fit into a length below the vocabulary: expected 4 * pairs <= length"
    )


def _states(subject: Subject, cells: Sequence[Cell]) -> Any:
    if isinstance(subject.state_bytes, str):
        return _not_measured(subject.state_bytes)
    if not cells:
        return _not_measured("MQAR was not measured")
    lengths = dict.fromkeys(cell["length"] for cell in cells)
    return [
        {"length": length, "bytes": int(subject.state_bytes(length)), "accuracy": _mean(cells, length=length)}
        for length in lengths
    ]


def _parts(subject: Subject, cells: Sequence[Cell], without: Mapping[str, Any]) -> RecallCard:
    if not subject.parts:
        return _not_measured("the parts of a callable are unknown; pass parts={name: the model without it}")
    if not cells:
        return _not_measured("MQAR was not measured")
    whole, guess = _mean(cells), float(np.mean([1 / cell["pairs"] for cell in cells]))
    found = []
    for part, (_, layers) in subject.parts.items():
        entry = {"part": part, "layers": layers}
        if isinstance(without[part], dict):
            found.append({**entry, **without[part]})
            continue
        accuracy = _mean(without[part])
        kept = accuracy / whole if whole else 1.0
        role = "carries recall" if kept < CARRIES else "bypassed" if kept > BYPASSED else "contributes"
        if whole <= guess:
            role = "unknown: the whole model recalls no better than a guess among the given values"
        by_pairs = _by_pairs(without[part])
        found.append({**entry, "accuracy": accuracy, "by_pairs": by_pairs, "kept": kept, "role": role})
    return {"accuracy": whole, "by_pairs": _by_pairs(cells), "without": found}


def _by_pairs(cells: Sequence[Cell]) -> dict[str, float]:
    return {str(pairs): _mean(cells, pairs=pairs) for pairs in sorted({cell["pairs"] for cell in cells})}


def _mean(cells: Sequence[Cell], **chosen: int) -> float:
    """Return the mean accuracy of the cells with these settings."""
    fits = [cell for cell in cells if all(cell[name] == value for name, value in chosen.items())]
    return float(np.mean([cell["accuracy"] for cell in fits]))
