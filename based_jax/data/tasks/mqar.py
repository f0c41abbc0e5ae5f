"""Multi-query associative recall (Zoology, section 4.1 and Algorithm 1), and tasks that vary it.

    k1 v1 k2 v2 ... kD vD  .  .  k2  .  .  .  k1  .  kD  .  .  .  .        inputs
                                 v2           v1     vD                    labels

Keys are drawn from the ids 1 ... V/2 - 1, values from V/2 ... V - 1, both without replacement and anew for
every example. After the context of 2 D tokens each key occurs once more, at position 2 D + 2 g, where the
slots g = 0, 1, ... are drawn without replacement with probability proportional to (g + 1) ** (power - 1).
The value is the label at the key's position. All other tokens are 0, or with `random_fill` uniform over all V
ids: noise that may equal a key of the context, and is not labelled.

The distribution is that of Zoology's generator; its random stream is not reproduced (NumPy's legacy
generator, and torch's global one for the filler, which therefore depends on the model that was built before).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.sampling import distinct, uniform, words
from based_jax.data.tasks.task import (
    IGNORE,
    Labels,
    Task,
    expect_even,
    expect_rows,
    filler,
    insert_queries,
    interleave,
)
from based_jax.typing import Array, Int
from based_jax.validate import expect, expect_integer


@dataclass(frozen=True)
class MQAR(Task):
    """Multi-query associative recall.

    Attributes:
        length: at least 2 (num_passes + 1) num_pairs.
        power: the papers print 0.1, their code uses 0.01.
        num_passes: how often the context is repeated before the queries.
    """

    vocab_size: int = 8192
    num_examples: int = 1000
    length: int = 64
    num_pairs: int = 8
    power: float = 0.01
    random_fill: bool = True
    num_passes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = 2 * (self.num_passes + 1)
        expect_rows(self, factor * self.num_pairs, f"{factor} * num_pairs")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw pairs, and queries for their values; see `Task.draw`."""
        of_samples, of_filler, _ = jax.random.split(rng, 3)
        n, half = self.num_examples, self.vocab_size // 2
        for_keys, for_values, for_slots = words(of_samples, 3, self.num_pairs, n)
        keys = distinct(for_keys, np.arange(1, half))
        values = distinct(for_values, np.arange(half, self.vocab_size))
        context = jnp.tile(interleave(keys, values), (1, self.num_passes))
        rest = filler(of_filler, self, context)
        return insert_queries(self, context, rest, for_slots, (keys,), values)


@dataclass(frozen=True)
class RepeatedContext(MQAR):
    """MQAR with two passes by default; see `MQAR`. Zoology's generator fails with passes above 1.

    k1 v1 k2 v2  k1 v1 k2 v2  .  .  k2  .  k1  .  .  .      two passes
    """

    num_passes: int = 2
    sliced_by = ("num_pairs", "length", "num_passes")


@dataclass(frozen=True)
class Forgetting(Task):
    """Forgetting MQAR (Zoology's code): some keys get a new value, and queries ask for the last one.

        k1 v1 k2 v2 k3 v3  k3 w3 k1 w1  .  .  k1  .  k2  .  .  .  k3  .  ...        inputs
                                              w1     v2           w3                labels

    All D + U values of a row are different, so a new value never equals an old one. (Zoology's code intends
    to exclude the old value, but excludes that of another key.) Otherwise it is as `MQAR`.

    Attributes:
        length: at least 2 (num_pairs + num_updates) + 2 num_pairs.
        num_updates: U, number of keys that get a second value, at most D; chosen at random, in random order.
    """

    vocab_size: int = 8192
    num_examples: int = 1000
    length: int = 64
    num_pairs: int = 8
    num_updates: int = 4
    power: float = 0.01
    random_fill: bool = True
    sliced_by = ("num_pairs", "num_updates", "length")

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.num_updates <= self.num_pairs
        expect(fits, "num_updates", self.num_updates, f"at most num_pairs = {self.num_pairs}")
        needed = 4 * self.num_pairs + 2 * self.num_updates
        expect_rows(self, needed, "4 * num_pairs + 2 * num_updates")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw pairs, updates of some of them, and queries for the last values; see `Task.draw`."""
        of_samples, of_updates, of_filler = jax.random.split(rng, 3)
        n, pairs, half = self.num_examples, self.num_pairs, self.vocab_size // 2
        for_keys, for_old, for_slots = words(of_samples, 3, pairs, n)
        for_new, for_choice = words(of_updates, 2, self.num_updates, n)
        keys = distinct(for_keys, np.arange(1, half))
        values = distinct(jnp.concatenate([for_old, for_new]), np.arange(half, self.vocab_size))
        old, new = values[:, :pairs], values[:, pairs:]
        updated = distinct(for_choice, np.arange(pairs))
        again = jnp.take_along_axis(keys, updated, axis=1)
        row = jnp.arange(n, dtype=jnp.int32)[:, None]
        last = old.at[row, updated].set(new, unique_indices=True)
        context = jnp.concatenate([interleave(keys, old), interleave(again, new)], axis=1)
        rest = filler(of_filler, self, context)
        return insert_queries(self, context, rest, for_slots, (keys,), last)


@dataclass(frozen=True)
class RecallProbe(Task):
    """Probe the recall of pretrained language models (Zoology, appendix G): MQAR over the whole vocabulary.

        k1 v1 k2 v2 ... kD vD  f  f  k2  f  f  f  k1  f  kD  f        inputs
                                     v2           v1     vD           labels

    The filler f is one fixed token, which is neither a key nor a value. Keys come from the lower half of the
    ids, values from the upper one. The papers measure the perplexity at the labels for 16 to 256 pairs.

    Attributes:
        vocab_size: V, the model's, without padding.
        length: at least 4 num_pairs.
        filler: token id between the queries, for instance that of a newline.
    """

    vocab_size: int = 32_000
    num_examples: int = 1000
    length: int = 1024
    num_pairs: int = 16
    filler: int = 0
    power: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_rows(self, 4 * self.num_pairs, "4 * num_pairs")
        expect_integer("filler", self.filler, 0, self.vocab_size - 1)

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw pairs, and queries for their values between filler tokens; see `Task.draw`."""
        n, pairs = self.num_examples, self.num_pairs
        for_keys, for_values, for_slots = words(rng, 3, pairs, n)
        ids = np.arange(self.vocab_size)
        lower, upper = (half[half != self.filler] for half in np.split(ids, [self.vocab_size // 2]))
        keys = distinct(for_keys, lower)
        values = distinct(for_values, upper)
        context = interleave(keys, values)
        rest = jnp.full((n, self.length - context.shape[1]), self.filler, jnp.int32)
        return insert_queries(self, context, rest, for_slots, (keys,), values)


@dataclass(frozen=True)
class SingleQuery(Task):
    """Single-query recall, the task of H3 and Hyena that MQAR replaced (Zoology, section 3.1).

        k2 v2 k1 v1 k2 v2 k3 v3 k1 v1  COPY k3        inputs
                                            v3        label

    Bigrams are drawn with replacement from a row's dictionary of `num_pairs` keys, ids below
    h = (vocab_size - 1) // 2; values are h ... 2 h - 1. The query is one key that occurred, always at the
    last position. Gated convolutions solve it. (In Zoology's code all rows of a segment share a dictionary,
    which a model can memorize.)

    Attributes:
        vocab_size: V; the last id is COPY.
        length: even, at least 4.
        num_pairs: entries of the dictionary, at most h.
    """

    vocab_size: int = 40
    num_examples: int = 1000
    length: int = 64
    num_pairs: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_even(self.length, 4)
        keys = (self.vocab_size - 1) // 2
        expect(self.num_pairs <= keys, "num_pairs", self.num_pairs, f"at most (vocab_size - 1) // 2 = {keys}")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw pairs, COPY, and the key whose value is the only label; see `Task.draw`."""
        of_dictionary, of_bigrams, of_query = jax.random.split(rng, 3)
        n, half = self.num_examples, (self.vocab_size - 1) // 2
        bigrams = (self.length - 2) // 2
        for_keys, for_values = words(of_dictionary, 2, self.num_pairs, n)
        keys = distinct(for_keys, np.arange(half))
        values = distinct(for_values, np.arange(half, 2 * half))
        picks = uniform(of_bigrams, n, bigrams, self.num_pairs)
        keys, values = (jnp.take_along_axis(tokens, picks, axis=1) for tokens in (keys, values))
        asked = uniform(of_query, n, 1, bigrams)
        copy = jnp.full((n, 1), self.vocab_size - 1, jnp.int32)
        query = jnp.take_along_axis(keys, asked, axis=1)
        inputs = jnp.concatenate([interleave(keys, values), copy, query], axis=1)
        labels = jnp.full((n, self.length - 1), IGNORE, jnp.int32)
        return inputs, jnp.concatenate([labels, jnp.take_along_axis(values, asked, axis=1)], axis=1)
