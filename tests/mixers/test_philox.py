"""The generator of initial parameters: known answers, keys, and arrays that shards compute alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.mixers.philox import PHILOX, philox_4x32, philox_key

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("rounds", "counter", "key", "expected"),
    [
        (7, (0,) * 4, (0,) * 2, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        (10, (0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (10, (ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            10,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_known_answers_of_random123(rounds, counter, key, expected):
    words = philox_4x32(tuple(map(jnp.uint32, counter)), tuple(map(jnp.uint32, key)), rounds)
    assert tuple(map(int, words)) == expected


def test_keys_of_every_kind_are_converted():
    typed, raw = jax.random.key(3), jax.random.PRNGKey(3)
    ours = philox_key(typed)
    assert jax.random.key_impl(ours) == PHILOX
    assert jax.random.key_data(ours).tolist() == jax.random.key_data(philox_key(raw)).tolist() == [0, 3, 0, 0]
    assert philox_key(ours) is ours
    assert len(set(jax.random.key_data(philox_key(jax.random.key(3, impl="rbg"))).tolist())) > 1


def test_derived_keys_differ():
    key = philox_key(jax.random.key(0))
    folded = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.arange(1000))
    keys = [key[None], folded, jax.random.split(key, 1000), jax.random.split(folded[1], 1000)]
    words = np.concatenate([jax.random.key_data(each) for each in keys])
    assert len(np.unique(words, axis=0)) == len(words)


def test_draws_are_normal_and_independent():
    """Bounds are five standard errors."""
    keys = jax.random.split(philox_key(jax.random.key(0)), 4)
    x = np.asarray(jax.vmap(lambda key: jax.random.normal(key, (200, 500)))(keys), np.float64).reshape(4, -1)
    error = 5 / x.shape[1] ** 0.5
    assert np.abs(x.mean(axis=1)).max() < error
    assert np.abs((x**2).mean(axis=1) - 1).max() < error * 2**0.5
    assert np.abs((x**4).mean(axis=1) - 3).max() < error * 96**0.5
    assert np.abs(np.corrcoef(x) - np.eye(4)).max() < error
    assert np.abs((x[:, 1:] * x[:, :-1]).mean(axis=1)).max() < error


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_bits_of_any_width(dtype):
    bits = jax.random.bits(philox_key(jax.random.key(1)), (4096,), dtype)
    assert bits.dtype == dtype
    assert np.unpackbits(np.asarray(bits).view(np.uint8)).mean() == pytest.approx(0.5, abs=0.02)


def test_a_seed_makes_a_key():
    """`jax.random.key(seed, impl=...)`, which tests and transformations use."""
    assert jax.random.key_data(jax.random.key(5, impl=PHILOX)).tolist() == [0, 5, 0, 0]
