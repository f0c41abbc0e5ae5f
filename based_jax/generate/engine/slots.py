"""The host's view of a pool: which request has which row, and how many rows there are.

The pool has 1, 2, 4, ... rows, as many as there are requests for, because each row costs time. It grows when
a row is needed and shrinks by one size at a time, so few programs are compiled: one for decoding at each
size, one for inserting, and one for each step up or down. Penalties and log-probabilities are data of the
rows, so no request needs its own program.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Key

from based_jax.generate.engine.pool import Made, Pool, decode, empty, insert, regroup, release
from based_jax.generate.engine.request import Request
from based_jax.generate.sampling import Counts, RowSettings, Sampler, row_settings
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Array, Float, Int, Params, State

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
        self._pool = empty(model, params, capacity)
        self.owners: list[T | None] = [None]
        """the owner of each row; None for a free row"""

    @property
    def running(self) -> list[T]:
        """Return the owners of rows."""
        return [owner for owner in self.owners if owner is not None]

    def insert(self, owner: T, request: Request, state: State, hidden: Float[Array, "1 D"]) -> None:
        """Give a request a row, growing the pool if all are taken.

        Args:
            state, hidden: one row each, after the prompt.
        """
        if None not in self.owners:
            self._regroup(self._sizes[self._sizes.index(len(self.owners)) + 1])
        self._widen_stops(request)
        slot = self.owners.index(None)
        self._pool = insert(self._pool, self._row(request, state, hidden), np.int32(slot))
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
        self._pool, made = decode(self._model, self._params, self._pool, chunk=chunk, top_logprobs=self._top)
        return list(self.owners), made

    def shrink(self) -> None:
        """Switch to the next smaller pool if all running rows fit into it."""
        index = self._sizes.index(len(self.owners))
        if index and len(self.running) <= self._sizes[index - 1]:
            self._regroup(self._sizes[index - 1])

    def warm_up_first(
        self, request: Request, state: State, hidden: Float[Array, "1 D"], chunk: int
    ) -> list[Callable[[], object]]:
        """Compile the programs that a single request runs.

        Returns:
            For each program of larger pools a function that compiles it without running it. They hold no
            pool and may be called in any thread at any time.
        """
        row, slot = self._row(request, state, hidden), np.int32(0)
        pools = [_shapes(self._pool, size) for size in self._sizes]
        self._pool = release(insert(self._pool, row, np.int32(0)), np.int32(0))
        self.decode(chunk)
        later: list[Callable[[], object]] = []
        compiled = functools.partial(functools.partial, compile_program)
        for smaller, pool in itertools.pairwise(pools):
            up, down = (np.zeros(len(other.step), np.int32) for other in (pool, smaller))
            static = {"chunk": chunk, "top_logprobs": self._top}
            later += [
                compiled(regroup, smaller, up, slot),
                compiled(insert, pool, row, slot),
                compiled(decode, self._model, self._params, pool, **static),
                compiled(release, pool, slot),
                compiled(regroup, pool, down, slot),
            ]
        return later

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

    def _row(self, request: Request, state: State, hidden: Float[Array, "1 D"]) -> Pool:
        """Return a pool of one row for a request."""
        pool, vocab_size = self._pool, self._model.config.vocab_size
        array: Any = np.array
        counts = self._uncounted
        if request.sampler.penalises:
            prompt = array([np.bincount(request.prompt, minlength=vocab_size)], np.int32)
            counts = counts._replace(prompt=jax.device_put(prompt))
        settings = _settings(request.sampler)
        unused = pool.stops.shape[1] - len(request.stop_tokens)
        return Pool(
            state=state,
            hidden=hidden,
            settings=settings._replace(keys=_keys(np.uint32(request.seed))),
            counts=counts,
            top=array([bool(request.logprobs)]),
            step=array([0], np.int32),
            limit=array([request.max_new_tokens], np.int32),
            stops=array([[*request.stop_tokens, *[-1] * unused]], np.int32),
            active=array([True]),
        )


def compile_program(program: Any, *args: Any, **options: Any) -> None:
    """Compile a jitted function for arguments, some of which may be shapes, so calls need not compile."""
    program.lower(*args, **options).compile()


def _shapes(pool: Pool, size: int) -> Pool:
    """Return the shapes of a pool's arrays with `size` rows."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype, weak_type=leaf.weak_type),
        jax.eval_shape(lambda pool: pool, pool),
    )


@functools.lru_cache(maxsize=256)  # most requests share a few samplers; each costs ten small transfers
def _settings(sampler: Sampler) -> RowSettings:
    """Return a sampler's settings, with a placeholder key."""
    return row_settings([sampler], _keys(np.uint32(0)))


@jax.jit
def _keys(seed: Int[Array, ""]) -> Key[Array, " 1"]:
    return jax.random.key(seed)[None]
