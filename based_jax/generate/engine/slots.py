"""The host's view of a pool: which request has which row, and how many rows there are.

The pool has 1, 2, 4, ... rows, as many as there are requests for, because each row costs time. It grows when
a row is needed and shrinks by one size at a time, so few programs are compiled: one for decoding at each
size, one for inserting, and one for each step up or down. Penalties and log-probabilities are data of the
rows, so no request needs its own program.
"""

import functools
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Key

from based_jax.generate.engine.request import Request
from based_jax.generate.pool import Made, Pool, Text, begin, decode, insert, new_rows, regroup, release
from based_jax.generate.sampling import Counts, RowSettings, Sampler, row_settings
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Array, Int, Params

T = TypeVar("T")


class Slots(Generic[T]):
    """The rows of a pool and their owners.

    Args:
        capacity: tokens that a state must hold.
        top_logprobs: how many of the most likely tokens are reported to requests that ask for them.
    """

    def __init__(
        self, model: LanguageModel, params: Params, most: int, capacity: int, top_logprobs: int = 0
    ) -> None:
        self._model, self._params, self._top = model, params, top_logprobs
        zeros = jax.device_put(np.zeros((1, model.config.vocab_size), np.int32))
        self._uncounted = Counts(zeros, zeros)
        self._sizes = [*(1 << power for power in range((most - 1).bit_length())), most]
        self.fresh = _begin(model, params, capacity)
        """a row before its first token"""
        free = new_rows(self.fresh, _settings(Sampler()), self._uncounted, 0, [-1] * 8, active=False)
        self._pool = regroup(free, np.zeros(1, np.int32), np.int32(0))  # in arrays of its own
        self.owners: list[T | None] = [None]
        """the owner of each row; None for a free row"""

    @property
    def running(self) -> list[T]:
        """Return the owners of rows."""
        return [owner for owner in self.owners if owner is not None]

    def insert(self, owner: T, request: Request, text: Text) -> None:
        """Give a request, whose prompt is read, a row, growing the pool if all are taken."""
        if None not in self.owners:
            self._regroup(self._sizes[self._sizes.index(len(self.owners)) + 1])
        self._widen_stops(request)
        slot = self.owners.index(None)
        self._pool = insert(self._pool, self._row(request, text), np.int32(slot))
        self.owners[slot] = owner

    def remove(self, owner: T, *, ended: bool) -> None:
        """Free an owner's row; `ended` means that its row has already ended on the device."""
        slot = self.owners.index(owner)
        self.owners[slot] = None
        if not ended:
            self._pool = release(self._pool, np.int32(slot))

    def decode(self, chunk: int) -> tuple[list[T | None], Made]:
        """Start making up to `chunk` tokens per row.

        Returns:
            The owners of the rows at this time, and the tokens being made for them.
        """
        sizes = {"chunk": chunk, "top_logprobs": self._top}
        self._pool, made = decode(self._model, self._params, self._pool, chunk, **sizes)
        return list(self.owners), made

    def shrink(self) -> None:
        """Switch to the next smaller pool if all running rows fit into it."""
        index = self._sizes.index(len(self.owners))
        if index and len(self.running) <= self._sizes[index - 1]:
            self._regroup(self._sizes[index - 1])

    def warm_up(self, request: Request, text: Text, chunk: int) -> None:
        """Compile the programs of every size of the pool, which must be free: run them without a row."""
        row, slot = self._row(request, text), np.int32(0)
        for size in [*self._sizes, *self._sizes[-2::-1]]:  # up, then down
            self._regroup(size)
            self._pool = release(insert(self._pool, row, slot), slot)
            self.decode(chunk)

    def _regroup(self, size: int) -> None:
        """Make a pool of `size` rows that begins with the running ones."""
        kept = [slot for slot, owner in enumerate(self.owners) if owner is not None]
        index = np.zeros(size, np.int32)
        index[: len(kept)] = kept
        self._pool = regroup(self._pool, index, np.int32(len(kept)))
        self.owners = [*self.running, *[None] * (size - len(kept))]

    def _widen_stops(self, request: Request) -> None:
        """Widen the pool's rows for a request with more stop tokens than any so far."""
        stops, count = self._pool.stops, len(request.stop_tokens)
        if count > stops.shape[1]:
            more = [(0, 0), (0, (1 << (count - 1).bit_length()) - stops.shape[1])]
            self._pool = self._pool._replace(stops=jnp.pad(stops, more, constant_values=-1))

    def _row(self, request: Request, text: Text) -> Pool:
        """Return a pool of one row for a request."""
        vocab_size, counts = self._model.config.vocab_size, self._uncounted
        if request.sampler.penalises:
            prompt = np.bincount(request.prompt, minlength=vocab_size)[None].astype(np.int32)
            counts = counts._replace(prompt=jax.device_put(prompt))
        settings = _settings(request.sampler)._replace(keys=_keys(np.uint32(request.seed)))
        unused = self._pool.stops.shape[1] - len(request.stop_tokens)
        stops = [*request.stop_tokens, *[-1] * unused]
        new = request.max_new_tokens
        return new_rows(text, settings, counts, new, stops, top=bool(request.logprobs))


@functools.partial(jax.jit, static_argnames=("model", "capacity"))
def _begin(model: LanguageModel, params: Params, capacity: int) -> Text:
    """Return a row before its first token, with the dtypes that it has later."""
    text, none = begin(model, 1, capacity), jnp.zeros((1, 1), jnp.int32)
    # A masked token changes nothing but dtypes: a float64 model's sums start as float32 and become wider.
    apply = functools.partial(model.apply, method="hidden")
    hidden, later = jax.eval_shape(apply, params, none, text.state, mask=none > 0)
    return Text(
        jax.tree.map(lambda now, then: now.astype(then.dtype), text.state, later),
        text.hidden.astype(hidden.dtype),
    )


@functools.lru_cache(maxsize=256)  # most requests share a few samplers; each costs ten small transfers
def _settings(sampler: Sampler) -> RowSettings:
    """Return a sampler's settings, with a placeholder key."""
    return row_settings([sampler], _keys(np.uint32(0)))


@jax.jit
def _keys(seed: Int[Array, ""]) -> Key[Array, " 1"]:
    return jax.random.key(seed)[None]
