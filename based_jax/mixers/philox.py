"""The generator of initial parameters: Philox 4x32-7, which on a CPU is faster than JAX's threefry.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.3; with
seven rounds it is Crush-resistant (their Table 2). A key has four words: Philox's own key, which comes from
the user's, and a path into which `fold_in` and `split` mix their numbers. Element i of an array is the first
word of the block whose counter is (i, 0, path). So the array can be computed in shards, and deriving a key
takes a few operations on scalars.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl

from based_jax.typing import Array

_ROUNDS = 7
_MULTIPLIERS = np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)
_WEYL = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_UNSIGNED = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}


def philox_4x32(counter: tuple[Any, ...], key: tuple[Any, ...], rounds: int = _ROUNDS) -> tuple[Array, ...]:
    """Return the four words of the blocks of `counter` (four words) and `key` (two); uint32, broadcast."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(rounds):
        high0, low0 = _high_word(_MULTIPLIERS[0], x0), _MULTIPLIERS[0] * x0
        high1, low1 = _high_word(_MULTIPLIERS[1], x2), _MULTIPLIERS[1] * x2
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
    return x0, x1, x2, x3


def philox_key(key: Array) -> Array:
    """Return this generator's key for a key of any other; its own are returned as they are."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if jax.random.key_impl(key) == PHILOX:
            return key
        words = jax.random.key_data(key)
    else:
        words = key
    if words.shape != (2,):
        words = jax.random.bits(key, (2,), jnp.uint32)
    return jax.random.wrap_key_data(jnp.concatenate([words, jnp.zeros(2, jnp.uint32)]), impl=PHILOX)


def _high_word(a: np.uint32, b: Any) -> Any:
    """Return the high word of a product, from half words: `lax.mulhi` fails on a mesh with jaxlib 0.10.2."""
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    a0, a1, b0, b1 = a & mask, a >> half, b & mask, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    return a1 * b1 + (middle >> half) + (a0 * b1 + (middle & mask) >> half)


def _mix(word: Any) -> Any:
    """Return a bijection of words in which every bit depends on every bit (the finalizer of MurmurHash3)."""
    word = (word ^ word >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    word = (word ^ word >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return word ^ word >> np.uint32(16)


def _seed(seed: Array) -> Array:
    high = seed >> 32 if seed.dtype.itemsize == 8 else jnp.zeros_like(seed)
    return jnp.stack([high, seed, jnp.zeros_like(seed), jnp.zeros_like(seed)]).astype(jnp.uint32)


def _fold_in(key: Array, data: Any) -> Array:
    first = _mix(key[2] ^ jnp.asarray(data).astype(jnp.uint32))
    second = _mix(key[3] + first + _WEYL[0])
    return jnp.concatenate([key[:2], first[None], second[None]])


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    number = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    # Rotated, so that the keys are not those of fold_in.
    rotated = key.at[2:].set(key[2:][::-1] ^ _WEYL[1])
    return jax.vmap(lambda i: _fold_in(rotated, i))(number).reshape(*shape, 4)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if math.prod(shape) > 2**32:
        raise ValueError(f"shape = {shape}: expected at most 2**32 elements")
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        index += lax.broadcasted_iota(jnp.uint32, shape, axis) * np.uint32(math.prod(shape[axis + 1 :]))
    words = philox_4x32((index, jnp.zeros((), jnp.uint32), key[2], key[3]), (key[0], key[1]))
    if bit_width == 64:
        return words[0].astype(jnp.uint64) << np.uint64(32) | words[1].astype(jnp.uint64)
    return words[0].astype(_UNSIGNED[bit_width])


PHILOX: Any = define_prng_impl(
    key_shape=(4,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="based_jax_philox",
    tag="phx",
)
"""The implementation, for `jax.random.wrap_key_data`."""
