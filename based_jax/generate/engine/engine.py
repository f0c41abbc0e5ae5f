"""Answer many requests at once; requests arrive and finish at any time (continuous batching).

    waiting  --a free slot-->  reading, a chunk of the prompt per round  -->  a row of the pool  -->  answered

A round (`Engine.step`) reads a chunk of a few prompts, then makes a chunk of tokens for all rows of the pool
in one compiled call. A recurrent state has a fixed size, so a row costs the same however much it has read,
and rows of any lengths share a pool without pages or padding.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from based_jax.generate.engine.request import Completion, Event, Finish, Full, Request, Stats, TokenLogprob
from based_jax.generate.engine.slots import Slots
from based_jax.generate.pool import Made, Text, read
from based_jax.generate.prefix import PrefixCache, Snapshot
from based_jax.generate.prompt import read_tokens
from based_jax.generate.sampling import Choice
from based_jax.generate.states import token_limit
from based_jax.models.language_model import LanguageModel
from based_jax.ops.core import sharding
from based_jax.typing import Params
from based_jax.validate import expect, expect_integer

_PROMPTS = 8  # most prompts read at a time: running rows wait for one chunk of each per round


@dataclasses.dataclass(eq=False)
class _Work:
    """A request and its progress."""

    ticket: int
    request: Request
    tokens: np.ndarray
    """the prompt"""
    text: Any = None
    """the `Text` of the tokens that were read, while the prompt is read"""
    read: int = 0
    """number of these tokens"""
    made: int = 0
    """number of tokens delivered, a stop token included"""
    done: bool = False
    scores: list[tuple[Choice, int]] = dataclasses.field(default_factory=list)
    """log-probabilities of the chunks that were read, and how many of each belong to prompt tokens"""


class Engine:
    """Answer requests with one model.

    Not thread-safe: call it from one thread. All work is done in `step`, which takes about as long as
    `decode_chunk` tokens and a chunk of up to 8 prompts.

    Examples:
        >>> import jax, jax.numpy as jnp, based_jax as bj
        >>> from based_jax.generate import Engine, Request
        >>> model = bj.LanguageModel(bj.presets.get("based-tiny"))
        >>> params = model.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
        >>> engine = Engine(model, params, slots=4)
        >>> answers = engine.run([Request([1, 2, 3], 5), Request([4], 9)])
        >>> [len(answer.tokens) for answer in answers]
        [5, 9]

    Args:
        model: any model whose mixers can continue from a state.
        params: its variables.
        slots: most requests decoded together.
        max_length: tokens that a row's state can hold. It limits a request (prompt and new tokens but the
            last) only if the model has a cache that grows with the text; see the attribute `limit`.
        prefill_chunk: tokens of a prompt chunk. A remainder of up to a quarter of it is read by a smaller
            program; these two are all that is compiled for prompts.
        decode_chunk: tokens per round and row.
        max_waiting: most requests that may wait for a slot; None is any number.
        top_logprobs: how many of the most likely tokens a request may ask for.
        prefix_cache: a cache for this model, these weights and this `max_length`; prefixes that prompts share
            are then read once.

    Raises:
        ValueError: an argument out of its range, or a model that cannot continue from a state.
    """

    @sharding.own_settings()
    def __init__(
        self,
        model: LanguageModel,
        params: Params,
        *,
        slots: int = 8,
        max_length: int = 2048,
        prefill_chunk: int = 128,
        decode_chunk: int = 8,
        max_waiting: int | None = None,
        top_logprobs: int = 5,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        sizes = {"slots": slots, "max_length": max_length, "prefill_chunk": prefill_chunk}
        for name, size in {**sizes, "decode_chunk": decode_chunk, "max_waiting": max_waiting}.items():
            if size is not None or name != "max_waiting":
                expect_integer(name, size, 1)
        expect_integer("top_logprobs", top_logprobs, 0, model.config.vocab_size)
        self.limit = token_limit(model, max_length)
        """most tokens of a request, less its last; None is any number"""
        self.slots, self.max_waiting, self.top_logprobs = slots, max_waiting, top_logprobs
        self._model, self._params, self._chunk = model, params, decode_chunk
        self._sizes = (max(1, prefill_chunk // 4), prefill_chunk)
        self._cache = prefix_cache
        self._ends = (prefill_chunk,) if prefix_cache is None else (prefill_chunk, prefix_cache.every)
        self._slots: Slots[_Work] = Slots(model, params, int(slots), max_length, top_logprobs)
        self._fresh = self._slots.fresh
        self._waiting: dict[int, _Work] = {}
        self._reading: dict[int, _Work] = {}
        self._pending: collections.deque[tuple[list[_Work | None], Made]] = collections.deque()
        self._events: list[Event] = []
        self._total: collections.Counter[str] = collections.Counter()

    # Submitting and cancelling.

    def submit(self, request: Request) -> int:
        """Queue a request.

        Returns:
            Its ticket, which its events carry.

        Raises:
            TypeError, ValueError: a request that this engine can never answer.
            Full: `max_waiting` requests wait.
        """
        self._check(request)
        if self.full:
            raise Full(f"max_waiting = {self.max_waiting} requests wait: try again later")
        self._total["submitted"] += 1
        ticket = self._total["submitted"]
        self._waiting[ticket] = _Work(ticket, request, np.array(request.prompt, np.int32))
        return ticket

    @sharding.own_settings()
    def cancel(self, ticket: int) -> bool:
        """Cancel a request, whether it waits, reads its prompt or runs.

        Its slot is free at once; its last event is returned by the next round.

        Returns:
            False if there is no such request, or it is finished.
        """
        work = self._waiting.pop(ticket, None) or self._reading.pop(ticket, None)
        if work is None:
            work = next((work for work in self._slots.running if work.ticket == ticket), None)
            if work is None:
                return False
            self._slots.remove(work, ended=False)
        work.done = True
        self._total["cancelled"] += 1
        self._events.append(Event(ticket, (), (), "cancelled"))
        return True

    @property
    def full(self) -> bool:
        """Return whether `submit` would raise `Full`."""
        return self.max_waiting is not None and len(self._waiting) >= self.max_waiting

    @property
    def idle(self) -> bool:
        """Return whether there is nothing to do and nothing to report."""
        return not (self._waiting or self._reading or self._slots.running or self._events)

    def stats(self) -> Stats:
        """Return what the engine holds now and has done so far."""
        now = len(self._waiting), len(self._reading), len(self._slots.running), self._free
        total = (self._total[kind] for kind in ("made", "prefilled", "cached", "finished", "cancelled"))
        return Stats(*now, len(self._slots.owners), *total)

    def run(self, requests: Iterable[Request]) -> list[Completion]:
        """Answer requests and return the completions in their order; the engine must be idle.

        Raises:
            TypeError, ValueError: a request that this engine can never answer; no request is started then.
        """
        expect(self.idle, "engine", self.stats(), "an idle one: run would lose the others' events")
        todo = collections.deque(requests)
        for request in todo:
            self._check(request)
        answers: dict[int, list[Event]] = {}
        try:
            while todo or not self.idle:
                while todo and not self.full:
                    answers[self.submit(todo.popleft())] = []
                for event in self.step():
                    answers[event.ticket].append(event)
        finally:  # after an interrupt the next call must find an idle engine
            for ticket in answers:
                self.cancel(ticket)
            self._events.clear()
        return [_join(events) for events in answers.values()]

    @sharding.own_settings()
    def warm_up(self) -> None:
        """Compile all programs now, so that no request waits for one; the engine must be idle."""
        expect(self.idle, "engine", self.stats(), "an idle one to warm up")
        for size in self._sizes:
            tokens = np.zeros((1, size), np.int32)
            text, _ = read(self._model, self._params, self._fresh, tokens, np.int32(1))
            read(self._model, self._params, text, tokens, np.int32(1), tokens[0], self.top_logprobs)
        self._slots.warm_up(Request([0]), self._fresh, self._chunk)

    # A round.

    @sharding.own_settings()
    def step(self) -> list[Event]:
        """Run one round.

        Returns:
            The events of the round; a request's last event gives the reason for its end. Empty when idle, and
            in rounds that only read prompts.
        """
        self._read_prompts()
        events, self._events = self._events, []
        if not (self._waiting or self._reading):
            self._slots.shrink()
        if self._slots.running:  # start a chunk on the device
            self._pending.append(self._slots.decode(self._chunk))
        # The device makes the next chunk while the caller reads this one, except when a request waits for a
        # row: then a row's end would be noticed a chunk later.
        while len(self._pending) > (bool(self._slots.running) and not self._waiting):
            events += self._collect()
        return events

    @property
    def _free(self) -> int:
        return self.slots - len(self._slots.running) - len(self._reading)

    def _read_prompts(self) -> None:
        """Admit requests and read a chunk of each prompt; move those whose prompt is read to the pool."""
        while self._waiting and self._free and len(self._reading) < _PROMPTS:
            work = self._waiting.pop(next(iter(self._waiting)))
            self._begin(work)
            self._reading[work.ticket] = work
        for work in list(self._reading.values()):
            length = len(work.request.prompt)
            if work.read < length:
                self._read_chunk(work)
            if work.read == length:
                del self._reading[work.ticket]
                if self._report_prompt(work):
                    self._slots.insert(work, work.request, work.text)
                work.text = None

    def _begin(self, work: _Work) -> None:
        """Start a request from the longest known prefix of its prompt."""
        work.text = self._fresh
        if self._cache is not None and not work.request.prompt_logprobs:
            found = self._cache.find(work.tokens)
            if found is not None:
                work.read, work.text = len(found.tokens), Text(found.state, found.hidden)
                self._total["cached"] += work.read

    def _read_chunk(self, work: _Work) -> None:
        prompt, begin = work.tokens, work.read
        end = min(len(prompt), *((begin // size + 1) * size for size in self._ends))
        size = next(size for size in self._sizes if end - begin <= size)
        chunk, count = _padded(prompt[begin:end], size), np.int32(end - begin)
        scoring = ()
        if work.request.prompt_logprobs:
            scoring = _padded(prompt[begin + 1 : end + 1], size), self.top_logprobs
        work.text, choice = read(self._model, self._params, work.text, chunk[None], count, *scoring)
        if choice is not None:
            work.scores.append((choice, min(end, len(prompt) - 1) - begin))
        work.read = end
        self._total["prefilled"] += end - begin
        if self._cache is not None:  # which keeps only the lengths it is made for
            self._cache.put(Snapshot(prompt[:end], *work.text))

    def _report_prompt(self, work: _Work) -> bool:
        """Report a prompt's log-probabilities if requested; return whether tokens are to be generated."""
        request, finish = work.request, None if work.request.max_new_tokens else "length"
        chunks = [(choice, count) for choice, count in jax.device_get(work.scores)]
        work.scores.clear()
        if any(np.isnan(choice.logprob[:count]).any() for choice, count in chunks):
            chunks, finish = [], "failed"
        logprobs = [item for choice, count in chunks for item in _logprobs(choice, count, request.logprobs)]
        if finish is not None:
            work.done = True
            self._total["finished"] += 1
        if logprobs or finish is not None:
            self._events.append(Event(work.ticket, (), (), finish, tuple(logprobs)))
        return finish is None

    def _collect(self) -> list[Event]:
        """Wait for the oldest chunk and return its events."""
        owners, made = self._pending.popleft()
        choice, count = jax.device_get(made)
        return [
            self._report(work, jax.tree.map(lambda part, slot=slot: part[slot, : count[slot]], choice))
            for slot, work in enumerate(owners)
            if work is not None and not work.done
        ]

    def _report(self, work: _Work, choice: Choice) -> Event:
        """Return one request's event; free its row if it is the last one."""
        request, tokens = work.request, choice.token.tolist()
        work.made += len(tokens)
        finish: Finish | None = None
        invalid = np.isnan(choice.logprob)
        if invalid.any():
            finish = "failed"
            del tokens[invalid.argmax() :]
        elif tokens[-1] in request.stop_tokens:
            finish = "stop"
            tokens.pop()
        elif work.made == request.max_new_tokens:
            finish = "length"
        if finish is not None:
            work.done = True
            self._slots.remove(work, ended=finish != "failed")
            self._total["finished"] += 1
        self._total["made"] += len(tokens)
        logprobs = _logprobs(choice, len(tokens) + (finish == "stop"), request.logprobs)
        end = logprobs[len(tokens)] if finish == "stop" and logprobs else None
        return Event(work.ticket, tuple(tokens), logprobs[: len(tokens)], finish, end=end)

    def _check(self, request: Request) -> None:
        if not isinstance(request, Request):
            raise TypeError(f"request = {request!r}: expected a Request")
        vocab_size, length, new = self._model.config.vocab_size, len(request.prompt), request.max_new_tokens
        for token in (min(request.prompt), max(request.prompt)):
            expect(0 <= token < vocab_size, "prompt", token, f"tokens in [0, {vocab_size})")
        read_tokens("stop_tokens", request.stop_tokens, vocab_size)
        if self.limit is not None:
            most = f"at most {self.limit}, the capacity of a row, less a prompt of {length} tokens, plus 1"
            expect(length + max(new, 1) - 1 <= self.limit, "max_new_tokens", new, most)
        if request.logprobs is not None:
            most = f"at most {self.top_logprobs} = top_logprobs of the engine"
            expect(request.logprobs <= self.top_logprobs, "logprobs", request.logprobs, most)


def _padded(tokens: np.ndarray, size: int) -> np.ndarray:
    return np.pad(tokens, (0, size - len(tokens)))


def _logprobs(choice: Choice, count: int, top: int | None) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of the first `count` tokens of a row."""
    if top is None:
        return ()
    columns = choice.token, choice.logprob, choice.top_ids[:, :top], choice.top_logprobs[:, :top]
    rows = zip(*(column[:count].tolist() for column in columns), strict=True)
    return tuple(
        TokenLogprob(token, logprob, tuple(zip(ids, values, strict=True)))
        for token, logprob, ids, values in rows
    )


def _join(events: Sequence[Event]) -> Completion:
    finish, end = events[-1].finish, events[-1].end
    assert finish is not None
    tokens = tuple(token for event in events for token in event.tokens)
    made, prompt = (
        tuple(item for event in events for item in getattr(event, name))
        for name in ("logprobs", "prompt_logprobs")
    )
    return Completion(tokens, made, finish, prompt, end)
