"""Write weights to several safetensors files, with an index that names the file of each tensor."""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from based_jax.convert.state_dict import write_safetensors
from based_jax.files import write_json
from based_jax.validate import expect_range

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_SHARD_BYTES = 10 * 10**9
"""Default for directories: every preset fits into one file."""


def write_weights(
    directory: Path, tensors: Mapping[str, np.ndarray | jax.Array], max_shard_bytes: int = MAX_SHARD_BYTES
) -> Path:
    """Write model.safetensors, or numbered shards and an index if one file would be too large.

    Files of an earlier save that are no longer used are removed.

    Args:
        max_shard_bytes: maximum bytes of tensors per file; a larger tensor gets its own file.

    Returns:
        The file for a loader: model.safetensors or the index.

    Raises:
        ValueError: `max_shard_bytes` below 1; tensors as in `write_safetensors`.
    """
    expect_range("max_shard_bytes", max_shard_bytes, 1, 2**63)
    metadata = {"format": "pt"}
    shards = _split(tensors, max_shard_bytes)
    # Without an index, a save that is interrupted between shards is an error, not a mixture of two models.
    (directory / INDEX).unlink(missing_ok=True)
    if len(shards) == 1:
        write_safetensors(directory / SINGLE, tensors, metadata)
        shards = {}
    for file, names in shards.items():
        write_safetensors(directory / file, {name: tensors[name] for name in names}, metadata)
    if shards:
        weight_map = {name: file for file, names in shards.items() for name in names}
        size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(directory / INDEX, index)
        (directory / SINGLE).unlink(missing_ok=True)
    for path in directory.glob("model-*-of-*.safetensors"):
        if path.name not in shards:
            path.unlink()
    return directory / (INDEX if shards else SINGLE)


def _split(tensors: Mapping[str, np.ndarray | jax.Array], most: int) -> dict[str, list[str]]:
    """Assign tensors to files in order: file name -> names of its tensors, at least one per file."""
    groups: list[list[str]] = []
    free = 0
    for name, tensor in tensors.items():
        if not groups or tensor.nbytes > free:
            groups.append([])
            free = most
        groups[-1].append(name)
        free -= tensor.nbytes
    count = len(groups)
    numbered = enumerate(groups, start=1)
    return {f"model-{number:05}-of-{count:05}.safetensors": names for number, names in numbered}
