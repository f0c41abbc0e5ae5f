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

import functools
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from based_jax.data import PackedTokens
from based_jax.data.tasks import IGNORE, MQAR, RecallProbe
from based_jax.evals.card.subject import LENGTHS, StateBytes, Subject, of_checkpoint
from based_jax.evals.label_scores import LabelScorer, LogitsFn
from based_jax.evals.perplexity.records import is_hit, repeat_distances
from based_jax.evals.perplexity.slices import perplexity, slices
from based_jax.validate import UINT32_MAX, expect, expect_array, expect_integer

PAIRS = (2, 4, 8, 16, 32, 64)
EXAMPLES = 100
SEED = 1 << 31
"""Outside the seeds from which `train mqar` draws its data."""

CARRIES, BYPASSED = 0.5, 0.95
"""Shares of the accuracy that are left without a part: below the first it carries recall, above the second it
is bypassed."""

_NOT_CAUSAL = "the logits change with later tokens, or from call to call: expected a causal model"
_NO_PAIRS = "no pairs fit into a length below the vocabulary: expected 4 * pairs <= length"
_NO_PARTS = "the parts of a callable are unknown; pass parts={name: the model without it}"
_SECTIONS = ("mqar", "hits", "probe", "state", "parts")
_SAME = 1e-3
"""Largest change of a causal model's loss (nats) by later tokens, which XLA may sum in another order."""
_LOG = logging.getLogger(__name__)

Cell = dict[str, Any]
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
    text: Int[np.ndarray, " T"] | PackedTokens | None = None,
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
            synthetic stream. A stream of documents is read as in training, with a tokenizer's start, if any,
            in place of the separator before each document.
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
        state = state_bytes or "a callable does not report its state; pass state_bytes="
        off = {part: (function, None) for part, function in (parts or {}).items()}
        subject = Subject(model, int(vocab_size or 0), "model", LENGTHS, {"source": "callable"}, state, off)
    lengths = subject.lengths if lengths is None else lengths
    _expect_cells(lengths, pairs)
    expect_integer("examples", examples, 2)
    expect_integer("filler", filler, 0, subject.vocab_size - 1)
    expect_integer("seed", seed, 0, UINT32_MAX)
    lengths, pairs, examples, seed = [*map(int, lengths)], [*map(int, pairs)], int(examples), int(seed)
    longest = max(lengths)
    if text is not None and not isinstance(text, PackedTokens):
        text = np.asarray(text)
        expect_array("text", text, ("T",), "integer")

    def scorer_of(apply_fn: LogitsFn) -> LabelScorer:
        return LabelScorer(apply_fn, longest, subject.vocab_size, batch_size=batch_size)

    def score_cells(apply_fn: LogitsFn) -> list[Cell]:
        return _mqar(scorer_of(apply_fn), lengths, pairs, examples, seed)

    scorer = scorer_of(subject.apply_fn)
    card: RecallCard = {"name": name or subject.name, "vocab_size": subject.vocab_size, "length": longest}
    card |= {"examples": examples, "seed": seed, "model": subject.facts}
    if not _is_causal(scorer):
        return {**card, **{section: {"not_measured": _NOT_CAUSAL} for section in _SECTIONS}}
    card["mqar"] = _measured("MQAR", lambda: score_cells(subject.apply_fn))
    cells = cells_of(card["mqar"])
    largest = max((cell["pairs"] for cell in cells if cell["length"] == longest), default=min(pairs))
    source = "text" if text is not None else f"synthetic stream of {largest} pairs"

    def hits() -> dict[str, Any]:
        if text is not None:
            if isinstance(text, PackedTokens):
                return _hits(scorer, _text_rows(text.tokens, longest), text.as_inputs)
            return _hits(scorer, _text_rows(text, longest))
        return _hits(scorer, _stream_rows(subject.vocab_size, longest, largest, examples, seed))

    card["hits"] = {"source": source, **_measured(source, hits)}
    probed = longest, pairs, examples, seed, filler
    card["probe"] = _measured("recall probe", lambda: recall_probe(scorer, *probed))
    card["state"] = _states(subject, cells)
    card["parts"] = _parts(subject, cells, score_cells)
    return card


def _is_causal(scorer: LabelScorer) -> bool:
    """Return whether the losses of a row's first half stay the same with another second half."""
    half = scorer.length // 2
    tokens = np.random.default_rng(0).integers(0, scorer.vocab_size, (2, scorer.length), np.int32)
    tokens[1, :half] = tokens[0, :half]
    labels = np.full_like(tokens, IGNORE)
    labels[:, : max(half - 1, 1)] = tokens[0, 1 : max(half, 2)]
    first, second = scorer(tokens, labels).loss.reshape(2, -1)
    return bool(np.allclose(first, second, rtol=_SAME, atol=_SAME))


def _mqar(
    scorer: LabelScorer, lengths: Sequence[int], pairs: Sequence[int], examples: int, seed: int
) -> list[Cell]:
    """Score MQAR (with random tokens between the queries) at each length, for all pairs that fit into it."""
    cells = []
    for length in lengths:
        for count in pairs:
            if _fits(scorer.vocab_size, length, count):
                segment = MQAR(scorer.vocab_size, examples, length, count).build(seed)
                scores = scorer(segment.inputs, segment.labels)
                by_row = scores.correct.reshape(examples, count).mean(axis=1)
                found = {"accuracy": float(by_row.mean()), "perplexity": perplexity(scores.loss)}
                found["stderr"] = float(by_row.std(ddof=1) / math.sqrt(examples))
                cells.append({"length": length, "pairs": count, **found})
    return cells


def _fits(vocab_size: int, length: int, pairs: int) -> bool:
    """Return whether rows of this length hold the pairs and their queries, with different keys and values."""
    return 4 * pairs <= length < vocab_size and pairs < vocab_size // 2


def recall_probe(
    scorer: LabelScorer, length: int, pairs: Sequence[int], examples: int, seed: int, filler: int
) -> list[Cell]:
    """Score the recall probe and its filler, for all pairs that fit."""
    cells = []
    for count in pairs:
        # One id, the filler, is no key and no value.
        if _fits(scorer.vocab_size, length, count) and count + 1 < scorer.vocab_size // 2:
            found = probe(scorer, RecallProbe(scorer.vocab_size, examples, length, count, filler), seed)
            cells.append({"length": length, "pairs": count, **found})
    return cells


def probe(scorer: LabelScorer, task: RecallProbe, seed: int) -> Cell:
    """Return accuracy and perplexity of the values, and perplexity of the filler (Zoology, appendix G).

    Filler right after a key is not scored, because a model that recalls expects the value there. With
    ``length == 4 * num_pairs`` there is no other filler, and its perplexity is None.
    """
    segment = task.build(seed)
    inputs, answers = np.asarray(segment.inputs), np.asarray(segment.labels)
    following = np.concatenate([inputs[:, 1:], np.full_like(inputs[:, :1], IGNORE)], axis=1)
    is_filler = (answers == IGNORE) & (following == task.filler)
    scores = scorer(inputs, np.where(is_filler, following, answers))
    is_value = answers[scores.row, scores.position] != IGNORE
    return {
        "accuracy": float(scores.correct[is_value].mean()),
        "perplexity": perplexity(scores.loss[is_value]),
        "filler_perplexity": perplexity(scores.loss[~is_value]),
    }


def _text_rows(tokens: Int[np.ndarray, " T"], length: int) -> Int[np.ndarray, "n N"]:
    """Cut a text into windows of `length` inputs and their targets, without the tokens after the last one.

    Documents in a window see each other, as in the authors' evaluation.
    """
    expect(len(tokens) > length, "text", f"{len(tokens)} tokens", f"more than length = {length}")
    return np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, np.int64), length + 1)[::length]


def _stream_rows(
    vocab_size: int, length: int, pairs: int, examples: int, seed: int
) -> Int[np.ndarray, "n N"]:
    """Draw rows of MQAR with each answer at the position after its query, which a slot reserves."""
    segment = MQAR(vocab_size, examples, length, pairs).build(seed)
    rows, labels = np.array(segment.inputs), np.asarray(segment.labels)
    row, position = np.nonzero(labels != IGNORE)
    rows[row, position + 1] = labels[row, position]
    return rows


def _hits(
    scorer: LabelScorer, rows: Int[np.ndarray, "n N"], as_inputs: Callable[[Any], Any] | None = None
) -> dict[str, Any]:
    """Compare AR hits, all repeated bigrams of a row, with the other tokens of the rows.

    Args:
        as_inputs: returns the tokens that the model reads in place of a row's; None for these.
    """
    inputs, targets = rows[:, :-1], rows[:, 1:]
    is_repeat = is_hit(repeat_distances(inputs, targets).ravel(), None)
    found = slices(scorer(as_inputs(inputs) if as_inputs else inputs, targets).loss, is_repeat)
    recalled, other = found["hits"]["loss"], found["other"]["loss"]
    return {**found, "gap": None if recalled is None or other is None else other - recalled}


def _expect_cells(lengths: Sequence[int], pairs: Sequence[int]) -> None:
    expect(len(lengths) > 0 and len(pairs) > 0, "lengths, pairs", (lengths, pairs), "at least one of each")
    for length in lengths:
        expect_integer("lengths", length, 2)
        expect(length % 2 == 0, "lengths", length, "even numbers")
    for count in pairs:
        expect_integer("pairs", count, 1)


def _measured(title: str, run: Callable[[], Any]) -> Any:
    """Return the result of `run`, or why there is none."""
    _LOG.info("%s", title)
    try:
        found = run()
    except ValueError as error:
        return {"not_measured": str(error)}
    return found or {"not_measured": _NO_PAIRS}


def _states(subject: Subject, cells: Sequence[Cell]) -> Any:
    if isinstance(subject.state_bytes, str):
        return {"not_measured": subject.state_bytes}
    if not cells:
        return {"not_measured": "MQAR was not measured"}
    lengths = dict.fromkeys(cell["length"] for cell in cells)
    return [
        {"length": length, "bytes": int(subject.state_bytes(length)), "accuracy": _mean(cells, length=length)}
        for length in lengths
    ]


def _parts(
    subject: Subject, cells: Sequence[Cell], score_cells: Callable[[LogitsFn], list[Cell]]
) -> RecallCard:
    if not subject.parts:
        return {"not_measured": _NO_PARTS}
    if not cells:
        return {"not_measured": "MQAR was not measured"}
    whole, guess = _mean(cells), float(np.mean([1 / cell["pairs"] for cell in cells]))
    found = []
    for part, (apply_fn, layers) in subject.parts.items():
        entry = {"part": part, "layers": layers}
        without = _measured(f"without {part}", functools.partial(score_cells, apply_fn))
        if isinstance(without, dict):
            found.append({**entry, **without})
            continue
        accuracy = _mean(without)
        kept = accuracy / whole if whole else 1.0
        role = "carries recall" if kept < CARRIES else "bypassed" if kept > BYPASSED else "contributes"
        if whole <= guess:
            role = "unknown: the whole model recalls no better than a guess among the given values"
        found.append(
            {**entry, "accuracy": accuracy, "by_pairs": _by_pairs(without), "kept": kept, "role": role}
        )
    return {"accuracy": whole, "by_pairs": _by_pairs(cells), "without": found}


def _by_pairs(cells: Sequence[Cell]) -> dict[str, float]:
    return {str(pairs): _mean(cells, pairs=pairs) for pairs in sorted({cell["pairs"] for cell in cells})}


def _mean(cells: Sequence[Cell], **chosen: int) -> float:
    """Return the mean accuracy of the cells with these settings."""
    return float(np.mean([cell["accuracy"] for cell in cells_of(cells, **chosen)]))


def cells_of(found: Any, **chosen: int) -> list[Cell]:
    """Return the cells with these settings; none if they were not measured."""
    cells = found if isinstance(found, list) else []
    return [cell for cell in cells if all(cell[name] == value for name, value in chosen.items())]
