"""Compute log-probabilities of continuations, and continue prompts, with lm-eval's generation settings.

A prefix that several requests share is read once: the state after it is copied to all of them, and each
continues from there. This is exact, by the split law of the mixers' contract:
mixer(concat(a, b)) == concat(mixer(a, s0), mixer(b, s1)). It takes the memory of one batch of states per
level of the prefix tree, which has a node for each shared run of tokens: usually two levels (questions,
choices).
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any, NamedTuple

import jax
import numpy as np

from based_jax.data.tokenizers import Tokenizer, decode_after, stop_tokens
from based_jax.evals.perplexity.scoring import (
    expect_left_to_right,
    expect_positions,
    expect_readable,
    target_scores,
)
from based_jax.generate import Sampler, stream
from based_jax.generate.prompt import SMALLEST_BUCKET, bucket
from based_jax.generate.states import take_rows
from based_jax.models.language_model import LanguageModel, make_mixer
from based_jax.typing import Params, State
from based_jax.validate import expect

SHORTEST = SMALLEST_BUCKET
"""Minimum tokens of a shared run with its own node: lengths are rounded up to this, so fewer save nothing."""


@dataclasses.dataclass
class Node:
    """Tokens `start` to `stop` (exclusive) of the sequences in `members`, which agree up to `stop`."""

    start: int
    stop: int
    members: list[int]
    """indices of the sequences; those that are in no child end here"""
    longest: int
    """number of tokens of the longest of them"""
    children: "list[Node]" = dataclasses.field(default_factory=list)


def prefix_tree(sequences: Sequence[Sequence[int]], *, share: bool = True) -> list[Node]:
    """Build the tree and return its roots; each sequence is the path from a root to the node where it ends.

    Args:
        sequences: nonempty sequences of tokens.
        share: False makes every distinct sequence a root.

    Examples:
        >>> long = tuple(range(20))
        >>> [root] = prefix_tree([(*long, 1), (*long, 2, 3)])
        >>> (root.start, root.stop), [(node.stop, node.members) for node in root.children]
        ((0, 20), [(22, [1]), (21, [0])])
    """
    ordered = sorted(range(len(sequences)), key=lambda index: tuple(sequences[index]))
    roots: list[Node] = []
    pending = [(ordered, 0, roots)] if ordered else []
    while pending:
        members, start, siblings = pending.pop()
        # In a sorted list, the common prefix of the first and the last is that of all.
        first, last = sequences[members[0]], sequences[members[-1]]
        pairs = zip(first[start:], last[start:], strict=False)
        stop = start + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        alike = stop == len(last)
        made = alike or (share and stop - start >= SHORTEST)
        if made:
            node = Node(start, stop, members, max(len(sequences[index]) for index in members))
            siblings.append(node)
            start, siblings = stop, node.children
        if not alike:
            # Sequences that end here are sorted first: their group has no next token.
            parts = [
                list(part) for _, part in groupby(members, lambda i, stop=stop: sequences[i][stop : stop + 1])
            ]
            if made and len(first) == stop:
                parts = parts[1:]
            pending += [(part, start, siblings) for part in parts]
    return roots


_TARGETS = 256  # targets per call of the output head: 51 MB of logits with GPT-2's vocabulary


class Request(NamedTuple):
    """A request for the probability of `continuation` after `context`."""

    context: Sequence[int]
    """tokens, at least one"""
    continuation: Sequence[int]
    """tokens, at least one"""


class Score(NamedTuple):
    """The model's score of a continuation."""

    log_prob: float
    """sum over its tokens, in nats"""
    greedy: bool
    """whether each of its tokens is the most likely one"""


def score_continuations(
    model: LanguageModel,
    params: Params,
    requests: Sequence[Request],
    *,
    batch_size: int = 8,
) -> Iterator[tuple[int, Score]]:
    """Score continuations, in an order that batches similar lengths, and read shared prefixes once.

    If a layer cannot continue from a state, every request is a parallel forward pass. Up to rounding (the
    order of sums), scores do not depend on the other requests and on the batch size.

    Yields:
        Pairs of a request's index and its score, as soon as they are computed.

    Raises:
        ValueError: an empty context or continuation, a request longer than the model's positions, tokens
            outside its vocabulary, a model that is not causal, or probabilities that are not finite.
    """
    expect(batch_size >= 1, "batch_size", batch_size, "at least 1")
    for number, request in enumerate(requests):
        for name, tokens in request._asdict().items():
            expect(len(tokens) > 0, f"request {number}, {name}", tokens, "at least one token")
    if requests:
        scorer = _Scorer(model, params, requests, batch_size)
        roots = prefix_tree(scorer.inputs, share=scorer.stateful)
        return scorer.visit([(0, root) for root in roots], None)
    return iter(())


class _Scorer:
    def __init__(
        self, model: LanguageModel, params: Params, requests: Sequence[Request], batch_size: int
    ) -> None:
        self.model, self.params, self.batch_size = model, params, batch_size
        self.texts = [(*request.context, *request.continuation) for request in requests]
        self.inputs = [text[:-1] for text in self.texts]  # the last token is only a target
        self.begins = [len(request.context) - 1 for request in requests]  # first input whose target is scored
        expect_left_to_right(model, max(map(max, self.texts)))
        layers = range(model.config.num_layers)
        self.stateful = all(make_mixer(model.config, index).stateful for index in layers)
        expect_fits = expect_readable if self.stateful else expect_positions
        expect_fits(model, "tokens of a request", max(map(len, self.inputs)))
        self.log_prob = np.zeros(len(requests))
        self.greedy = np.ones(len(requests), bool)
        self.missing = np.array([len(request.continuation) for request in requests])

    def visit(self, nodes: list[tuple[int, Node]], before: State | None) -> Iterator[tuple[int, Score]]:
        """Read nodes and their descendants; each node comes with its row in the state before it."""
        # Rows of a batch should have similar lengths, and need caches of similar capacity.
        nodes.sort(key=lambda pair: (not pair[1].children, -_capacity(pair[1]), pair[1].start - pair[1].stop))
        for first in range(0, len(nodes), self.batch_size):
            batch = nodes[first : first + self.batch_size]
            rows = _rounded(len(batch), self.batch_size)
            filled = [*batch, *batch[-1:] * (rows - len(batch))]
            if before is not None:
                state = _take(before, np.array([row for row, _ in filled], np.int32))
            elif self.stateful:
                state = self.model.init_state(rows, max(_capacity(node) for _, node in batch))
            else:
                state = None
            chunks = [self.inputs[node.members[0]][node.start : node.stop] for _, node in filled]
            lengths = np.array([len(chunk) for chunk in chunks])
            length = bucket(int(lengths.max()))
            tokens = np.zeros((rows, length), np.int32)
            mask = np.arange(length)[None] < lengths[:, None]
            tokens[mask] = np.concatenate(chunks)
            hidden, state = _read(self.model, self.params, tokens, mask, state)
            yield from self.look([node for _, node in batch], hidden)
            below = [(row, child) for row, (_, node) in enumerate(batch) for child in node.children]
            if below:
                yield from self.visit(below, state)

    def look(self, batch: list[Node], hidden: Any) -> Iterator[tuple[int, Score]]:
        """Sum the scores of the targets in these nodes; yield the requests that are complete."""
        width = hidden.shape[1]
        asked = [
            (row * width + position - node.start, self.texts[member][position + 1], member)
            for row, node in enumerate(batch)
            for member in node.members
            for position in range(max(node.start, self.begins[member]), node.stop)
        ]
        if not asked:
            return
        positions, targets, owners = np.array(asked, np.int32).T
        losses, hits = [], []
        for first in range(0, len(asked), _TARGETS):
            part = slice(first, first + _TARGETS)
            count = len(targets[part])
            fill = (0, _rounded(count, _TARGETS) - count)
            padded = np.pad(positions[part], fill), np.pad(targets[part], fill)
            found = _score(self.model, self.params, hidden, *padded)
            loss, predicted = (np.asarray(array)[:count] for array in found)
            losses.append(loss)
            hits.append(predicted == targets[part])
        loss = np.concatenate(losses).astype(float)
        expect(bool(np.isfinite(loss).all()), "loss", "NaN or infinite", "finite losses from the checkpoint")
        np.subtract.at(self.log_prob, owners, loss)
        np.logical_and.at(self.greedy, owners, np.concatenate(hits))
        np.subtract.at(self.missing, owners, 1)
        for member in np.unique(owners):
            if self.missing[member] == 0:
                yield int(member), Score(float(self.log_prob[member]), bool(self.greedy[member]))


def _capacity(node: Node) -> int:
    """Return the tokens that a row's caches must hold, rounded to few sizes so that few programs compile."""
    return 1 << (node.longest - 1).bit_length()


def _rounded(count: int, limit: int) -> int:
    """Round up to a power of four, at most `limit`, so that few sizes compile and few rows are wasted."""
    return min(4 ** -(-(count - 1).bit_length() // 2), limit)


@functools.partial(jax.jit, static_argnames=("model",), donate_argnames=("state",))
def _read(model, params, tokens, mask, state):
    return model.apply(params, tokens, state, mask=mask, method="hidden")


_take = jax.jit(take_rows)


@functools.partial(jax.jit, static_argnames=("model",))
def _score(model, params, hidden, positions, targets):
    hidden = hidden.reshape(-1, hidden.shape[-1])[positions]
    loss, predicted, _ = target_scores(model, params, hidden, targets)
    return loss, predicted


MAX_TOKENS = 256
"""Default limit of a continuation, as in lm-eval."""

_MAX_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = ("top_k", "top_p", "min_p", "repetition_penalty")
_NAMES = ("until", "do_sample", "temperature", *_SAMPLING, *_MAX_TOKENS_NAMES)
_CHUNK = 16  # tokens between checks for stop texts


class Settings(NamedTuple):
    """Generation settings of a request."""

    until: tuple[str, ...]
    """texts that end the continuation, without being part of it"""
    max_tokens: int
    sampler: Sampler

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> "Settings":
        """Parse a task's `generation_kwargs`.

        Without `do_sample` a temperature above 0 samples; with `do_sample: true` the temperature defaults to
        1; with `do_sample: false` it is ignored.
        """
        unknown = sorted(set(options) - set(_NAMES))
        expect(not unknown, "generation_kwargs", unknown, f"only {', '.join(_NAMES)}")
        until = options.get("until") or ()
        until = (until,) if isinstance(until, str) else tuple(until)
        for text in until:
            expect(isinstance(text, str), "until", text, "texts")
        sample = options.get("do_sample")
        temperature = options.get("temperature")
        if sample is False:
            temperature = 0.0
        elif temperature is None:
            temperature = 1.0 if sample else 0.0
        counts = [options[name] for name in _MAX_TOKENS_NAMES if options.get(name) is not None]
        max_tokens = counts[0] if counts else MAX_TOKENS
        max_tokens = int(max_tokens) if str(max_tokens).isdecimal() else max_tokens  # lm-eval takes "64"
        good = isinstance(max_tokens, int) and max_tokens >= 1
        expect(good, "max_gen_toks", max_tokens, "an integer, at least 1")
        given = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
        sampler = Sampler(temperature, **given)
        return cls(tuple(filter(None, until)), max_tokens, sampler)

    def cut(self, text: str) -> str:
        """Return the text before the first stop text."""
        return text[: min((text.find(stop) for stop in self.until if stop in text), default=len(text))]


def continue_texts(
    model: LanguageModel,
    params: Params,
    tokenizer: Tokenizer,
    prompts: Sequence[np.ndarray],
    settings: Settings,
    rng: Any = None,
) -> list[str]:
    """Continue prompts until a stop text, a stop token, or `settings.max_tokens`.

    Args:
        prompts: rows of tokens, none empty; no row sees padding.
        rng: one key per row, if the settings sample.
    """
    tokens, stops = np.zeros((len(prompts), 0), np.int32), stop_tokens(tokenizer)
    ends: dict[str, Any] = {"stop_tokens": stops, "pad_token": -1, "chunk": _CHUNK, "rng": rng}
    sampling = dataclasses.asdict(settings.sampler)
    texts = [""] * len(prompts)
    for chunk in stream(model, params, prompts, settings.max_tokens, **sampling, **ends):
        tokens = np.concatenate([tokens, chunk], axis=1)
        made = (row[(row >= 0) & ~np.isin(row, stops)] for row in tokens)
        texts = [decode_after(tokenizer, *pair) for pair in zip(prompts, made, strict=True)]
        if all(settings.cut(text) != text for text in texts):
            break
    return [settings.cut(text) for text in texts]


def keys_for(seed: int, numbers: Sequence[int]) -> Any:
    """Return one key per number, below 2^32, so that a request is sampled alike in any batch."""
    folds = np.array(numbers, np.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), folds)
