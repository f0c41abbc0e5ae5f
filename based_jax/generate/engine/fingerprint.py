"""Fingerprint the model that made a state: short texts that differ when the config or any weight does."""

import hashlib
import json

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from based_jax.models.config import ModelConfig
from based_jax.typing import Array, Int, Params

_TRAINING_ONLY = (
    *("embed_dropout", "residual_dropout", "drop_path", "embed_init", "freeze_embedding", "init_std"),
    *("max_length", "remat", "scan_layers"),
)
"""fields of a config that do not change a state"""


def config_fingerprint(config: ModelConfig) -> str:
    """Return the SHA-256 of the fields that decide what a model computes from its weights, dtype included."""
    fields = {name: value for name, value in config.to_dict().items() if name not in _TRAINING_ONLY}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def weights_fingerprint(params: Params) -> str:
    """Return the SHA-256 of all weights' names, shapes, dtypes and 32-bit checksums of their bits.

    A sample of the weights would miss a change of a few rows; a cryptographic hash of all would bring them
    to the host. The checksums are computed on the device in one pass over the weights. Any change of a single
    number is found, any other with probability 1 - 2^-32. They detect mistakes, not forgeries.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(nn.meta.unbox(params))
    sums = jax.device_get(_checksums([leaf for _, leaf in leaves]))
    text = [
        f"{jax.tree_util.keystr(path)} {tuple(leaf.shape)} {leaf.dtype} {checksum}"
        for (path, leaf), checksum in zip(leaves, sums, strict=True)
    ]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


@jax.jit
def _checksums(leaves: list[Array]) -> Int[Array, " leaves"]:
    return jnp.stack([_checksum(leaf) for leaf in leaves])


def _checksum(leaf: Array) -> Int[Array, ""]:
    """Sum all words, each mixed with its position by MurmurHash3's bijection of words."""
    itemsize = leaf.dtype.itemsize
    word = jnp.dtype(f"uint{8 * min(itemsize, 4)}")
    x = lax.bitcast_convert_type(leaf, word).reshape(-1).astype(jnp.uint32)
    x ^= lax.iota(jnp.uint32, x.size) * jnp.uint32(0x9E3779B9)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return (x ^ (x >> 16)).sum(dtype=jnp.uint32)
