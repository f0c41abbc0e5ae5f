"""The six tasks of MAD (Poli et al. 2024, 2403.17844, section 3.1, and its code).

    k2 v2 k1 v1 k2 v2 n3 n1 k1 v1           in-context recall: the value of each key that came before;
                v2          v1              with noise n of its own vocabulary between the pairs
    .  k1 k2 v3 k3 v1 v2 k1 k2 v3           fuzzy recall: keys and values of one to three tokens
                            v3
    .  a  .  .  b  .  a  COPY .  .  .       selective copying: what is not blank, in its order
                              a  b  a
    a  b  b  c  END                         compression: the row, decoded from the output at END
    a  b  b  c
    k1 ?  k3 ?  k1 ?                        memorization: the value of a key in a map of all rows
       v1    v3    v1

MAD trains recall on every next token and tests the answers; here both have the answers as labels.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.data.tasks.sampling import distinct, one_of, scaled, uniform, words
from based_jax.data.tasks.task import IGNORE, Labels, Task, expect_even, interleave
from based_jax.typing import Array, Int
from based_jax.validate import expect, expect_range


@dataclass(frozen=True)
class _Words(Task):
    vocab_size: int = 16
    num_examples: int = 1000
    length: int = 128
    sliced_by = ("vocab_size", "length")
    least: ClassVar[tuple[int, int]] = (3, 2)  # vocabulary and length

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in zip(("vocab_size", "length"), self.least, strict=True):
            expect_range(name, getattr(self, name), least)


@dataclass(frozen=True)
class InContextRecall(_Words):
    """In-context recall. Keys are the lower half of the ids, values the upper one, both with replacement.

    Attributes:
        length: even; the last pair's key is one of those that came before.
        noise_vocab_size: ids at the end of the vocabulary that are noise.
        frac_noise: probability that a pair is two tokens of noise; one pair of a row is not.
    """

    noise_vocab_size: int = 0
    frac_noise: float = 0.0
    least = (2, 4)

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_even(self.length)
        most, fraction = self.vocab_size - 2, self.frac_noise
        least = int(fraction > 0)
        is_fine = least <= self.noise_vocab_size <= most
        expect(is_fine, "noise_vocab_size", self.noise_vocab_size, f"{least} to vocab_size - 2 = {most}")
        expect(0 <= fraction < 1, "frac_noise", fraction, "at least 0 and below 1")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw pairs and noise, and label the keys that came before; see `Task.draw`."""
        of_keys, of_values, of_last, of_noise, of_kept, of_tokens = jax.random.split(rng, 6)
        n, pairs, known = self.num_examples, self.length // 2, self.vocab_size - self.noise_vocab_size
        half, row, index = known // 2, jnp.arange(n)[:, None], jnp.arange(pairs)
        keys = uniform(of_keys, n, pairs - 1, half)
        noisy = uniform(of_noise, n, pairs - 1, 1 << 30) < round(self.frac_noise * (1 << 30))
        noisy &= index[:-1] != uniform(of_kept, n, 1, pairs - 1)
        shown = jnp.zeros((n, half), bool).at[row, keys].max(~noisy)
        keys = jnp.concatenate([keys, one_of(of_last, shown)], axis=1)
        noisy = jnp.pad(noisy, ((0, 0), (0, 1)))
        values = half + uniform(of_values, n, half, known - half)
        values = jnp.take_along_axis(values, keys, axis=1)
        first = jnp.full((n, half), pairs).at[row, keys].min(jnp.where(noisy, pairs, index))
        again = ~noisy & (jnp.take_along_axis(first, keys, axis=1) < index)
        noise = known + uniform(of_tokens, n, self.length, max(self.noise_vocab_size, 1))
        inputs = jnp.where(jnp.repeat(noisy, 2, axis=1), noise, interleave(keys, values))
        labels = jnp.where(again, values, IGNORE)
        return inputs, interleave(labels, jnp.full_like(labels, IGNORE))


@dataclass(frozen=True)
class NoisyInContextRecall(InContextRecall):
    """In-context recall with a fifth of the pairs replaced by noise; see `InContextRecall`."""

    vocab_size: int = 32
    noise_vocab_size: int = 16
    frac_noise: float = 0.2


@dataclass(frozen=True)
class FuzzyInContextRecall(_Words):
    """In-context recall of keys and values of several tokens, of any size alike, padded on the left.

    The last pair repeats one at a random position; the label of a value's token is at the token before it.
    The last id is padding, and the lower half of the others are keys. (MAD tests with the longest keys only.)

    Attributes:
        length: at least 2 (key_motif + value_motif); as many pairs as fit.
        key_motif, value_motif: largest number of tokens, all different, of a key and of a value.
    """

    key_motif: int = 3
    value_motif: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        most = min((self.vocab_size - 1) // 2, 3)
        for name in ("key_motif", "value_motif"):
            expect(getattr(self, name) <= most, name, getattr(self, name), f"at most {most}")
        least = 2 * (self.key_motif + self.value_motif)
        expect(self.length >= least, "length", self.length, f"at least 2 (key_motif + value_motif) = {least}")
        expect(self.vocab_size <= 2048, "vocab_size", self.vocab_size, "at most 2048")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw the asked pair, others around it, and the asked pair again; see `Task.draw`."""
        of_key_sizes, of_value_sizes, of_keys, of_values, of_insertion = jax.random.split(rng, 5)
        n, count, most = self.num_examples, self.length // 2 + 1, self.key_motif
        half = (self.vocab_size - 1) // 2
        row, slot = jnp.arange(n)[:, None], jnp.arange(count + 1)
        key_sizes = 1 + uniform(of_key_sizes, n, count, most)
        value_sizes = 1 + uniform(of_value_sizes, n, count, self.value_motif)
        keys = distinct(words(of_keys, most, n * count), np.arange(half))
        values = distinct(words(of_values, self.value_motif, n * count), np.arange(half, self.vocab_size - 1))
        keys, values = (tokens.reshape(n, count, -1) for tokens in (keys, values))
        digits = jnp.where(jnp.arange(most) < key_sizes[..., None], keys + 1, 0)
        ids = digits @ (half + 1) ** jnp.arange(most)
        first = _first(ids)  # pair 0 is the asked one; equal keys have the value of the first of them
        values, value_sizes = values[row, first], value_sizes[row, first]
        sizes = key_sizes + value_sizes
        fitting = jnp.cumsum(sizes[:, 1:], axis=1) <= self.length - 2 * sizes[:, :1]
        others = jnp.sum(fitting, axis=1, keepdims=True, dtype=jnp.int32)
        insertion = scaled(jax.random.bits(of_insertion, (2, n, 1), jnp.uint32), others + 1)
        order = jnp.where((slot == insertion) | (slot > others), 0, slot + (slot < insertion))
        used = slot <= others + 1
        again = used & (_first(jnp.where(used, ids[row, order], -1 - slot)) < slot)
        starts = jnp.cumsum(jnp.where(used, sizes[row, order], 0)[:, ::-1], axis=1)[:, ::-1]
        tokens = jnp.concatenate([keys, values], axis=2)[row, order].reshape(n, -1)
        # Columns of a pair are those of the longest key and value; what a pair lacks goes out of the row.
        column = jnp.arange(most + self.value_motif)
        key_sizes, value_sizes = (each[row, order][..., None] for each in (key_sizes, value_sizes))
        offset = jnp.where(column < most, column, key_sizes + column - most)
        inside = jnp.where(column < most, column < key_sizes, column - most < value_sizes)
        at = self.length - starts[..., None] + offset

        def put(base: int, at: Array, kept: Array) -> Int[Array, "n N"]:
            where = jnp.where(kept, at, self.length).reshape(n, -1)
            return jnp.full((n, self.length), base, jnp.int32).at[row, where].set(tokens, mode="drop")

        labelled = inside & again[..., None] & (column >= most)
        return put(self.vocab_size - 1, at, inside & used[..., None]), put(IGNORE, at - 1, labelled)


def _first(ids: Int[Array, "n P"]) -> Int[Array, "n P"]:
    """Return the index of the first equal id of each row."""
    return jnp.argmax(ids[:, :, None] == ids[:, None, :], axis=2)


@dataclass(frozen=True)
class SelectiveCopying(_Words):
    """Selective copying (Gu and Dao 2023, section 4.1, and MAD). The last two ids are the blank and COPY.

    All choices of positions are equally likely. (In MAD's code a token of the row always precedes COPY.)

    Attributes:
        length: at least 2 num_copied + 1: the context, COPY, and a blank for each label.
        num_copied: tokens to copy, drawn with replacement.
    """

    length: int = 256
    num_copied: int = 16
    sliced_by = ("num_copied", "length")

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = 2 * self.num_copied + 1
        expect(self.length >= needed, "length", self.length, f"at least 2 num_copied + 1 = {needed}")

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw tokens between blanks, COPY, and as many blanks with the tokens as labels; see `Task.draw`."""
        of_tokens, of_positions = jax.random.split(rng)
        n, count, blank = self.num_examples, self.num_copied, self.vocab_size - 2
        context = self.length - count - 1
        tokens = uniform(of_tokens, n, count, blank)
        positions = jnp.sort(distinct(words(of_positions, count, n), np.arange(context)), axis=1)
        inputs = jnp.full((n, self.length), blank, jnp.int32).at[:, context].set(blank + 1)
        inputs = inputs.at[jnp.arange(n)[:, None], positions].set(tokens)
        return inputs, jnp.full_like(inputs, IGNORE).at[:, context + 1 :].set(tokens)


@dataclass(frozen=True)
class Compression(_Words):
    """Compression: a row of random tokens and END, the last id. Models decode it from the output at END."""

    length: int = 32
    decodes_last = True
    least = (2, 2)

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw tokens, which are their own labels, and END; see `Task.draw`."""
        end, right = self.vocab_size - 1, ((0, 0), (0, 1))
        tokens = uniform(rng, self.num_examples, self.length - 1, end)
        return jnp.pad(tokens, right, constant_values=end), jnp.pad(tokens, right, constant_values=IGNORE)


@dataclass(frozen=True)
class Memorization(_Words):
    """Memorization of one map from keys, the lower half of the ids, to values. The last id asks for a value.

    Attributes:
        length: even.
    """

    vocab_size: int = 256
    length: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_even(self.length)

    def mapping(self) -> Int[Array, " keys"]:
        """Return the value of each key, all different, and the same for every seed of a segment."""
        half = (self.vocab_size - 1) // 2
        rng = jax.random.key(0, impl="threefry2x32")
        return distinct(words(rng, half, 1), np.arange(half, self.vocab_size - 1))[0]

    def draw(self, rng: Array) -> tuple[Int[Array, "n N"], Labels]:
        """Draw keys, each followed by the last id, whose label is the value; see `Task.draw`."""
        keys = uniform(rng, self.num_examples, self.length // 2, (self.vocab_size - 1) // 2)
        last, none = (jnp.full_like(keys, value) for value in (self.vocab_size - 1, IGNORE))
        return interleave(keys, last), interleave(none, self.mapping()[keys])
