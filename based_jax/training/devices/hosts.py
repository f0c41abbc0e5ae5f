"""Run on several hosts: join the processes, assign rows of the batch, and write from one process only.

Every host runs the same command; JAX's runtime joins them (`jax.distributed`). All processes take the same
decisions at the same steps because they decide by values that all of them hold.
"""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from based_jax.validate import expect, expect_ranges

# Variables that schedulers set in each process: the number of processes, the index of this one, and for SLURM
# one that is only set under srun, not in the batch script itself.
_SCHEDULERS = (
    ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)


_LOST = re.compile("gloo|nccl|heartbeat|connection (reset|closed)", re.IGNORECASE)
"""Words of a collective's error when another process is gone."""


@dataclasses.dataclass(frozen=True)
class HostsConfig:
    """The processes of a run; detected under SLURM and Open MPI, otherwise set on each host."""

    coordinator: str | None = None
    """HOST:PORT of process 0; default: JAX_COORDINATOR_ADDRESS"""
    num_processes: int | None = None
    """number of processes, usually one per host; default: from JAX_NUM_PROCESSES, SLURM or MPI"""
    process_id: int | None = None
    """index of this process, from 0; default: from JAX_PROCESS_ID, SLURM or MPI"""
    heartbeat_timeout: int = 100
    """seconds without a heartbeat after which a process counts as lost"""

    def __post_init__(self) -> None:
        expect_ranges(self, 1, "num_processes", "heartbeat_timeout")
        _expect_address("coordinator", self.coordinator)


def join(config: HostsConfig) -> None:
    """Join the run's other processes, if there are any, before the first use of a device.

    ValueError: some of the settings are missing. OSError: the other processes did not connect.
    """
    coordinator = config.coordinator or os.environ.get("JAX_COORDINATOR_ADDRESS")
    _expect_address("JAX_COORDINATOR_ADDRESS", coordinator)
    scheduler = next((names for names in _SCHEDULERS if all(name in os.environ for name in names)), ())
    count = _first(config.num_processes, "JAX_NUM_PROCESSES", *scheduler[:1])
    number = _first(config.process_id, "JAX_PROCESS_ID", *scheduler[1:2])
    if count == 1 or (coordinator is None and count is None and number is None):
        return
    timeouts = ("heartbeat_timeout_seconds", "shutdown_timeout_seconds")
    try:
        jax.distributed.initialize(
            coordinator, count, number, **dict.fromkeys(timeouts, config.heartbeat_timeout)
        )
    except RuntimeError as error:
        raise OSError(f"the run's {count} processes did not meet at {coordinator}: {error}") from error


def _expect_address(name: str, value: str | None) -> None:
    _, separator, port = (value or ":0").rpartition(":")
    expect(separator == ":" and port.isdecimal(), name, value, "HOST:PORT")


@contextlib.contextmanager
def together(prog: str) -> Iterator[None]:
    """End this process of several at once on an exception, with one line and status 2.

    JAX's runtime ends the others, which are in the middle of a step, once it notices that this one is gone.
    """
    try:
        yield
    except Exception as error:
        if jax.process_count() == 1:
            raise
        process = f"process {jax.process_index()} of {jax.process_count()}"
        message = str(error) or type(error).__name__
        cause = "another process was probably lost: " if _LOST.search(message) else ""
        message = f"{prog}: {process}: {cause}{message}"
        os.write(2, f"{' '.join(message.split())[:2000]}\n".encode())
        os._exit(2)


def _first(given: int | None, *names: str) -> int | None:
    """Return `given`, or else the value of the first of these environment variables that is set."""
    if given is not None:
        return given
    found = next((os.environ[name] for name in names if os.environ.get(name)), None)
    expect(found is None or found.isdecimal(), names[0], found, "a number in the environment")
    return None if found is None else int(found)


def is_main() -> bool:
    """Return whether this process writes the files that only one may write: config, metrics, final model."""
    return jax.process_index() == 0


def from_main(function: Callable[[], int | None]) -> int:
    """Call `function` in the main process and return its result in every process; 0 for None.

    If it raises, the main process raises that exception and the others a ValueError.
    """
    if jax.process_count() == 1:
        return function() or 0
    value, problem = 0, None
    if is_main():
        try:
            value = function() or 0
        except Exception as error:
            problem = error
    value, failed = multihost_utils.broadcast_one_to_all(np.array([value, problem is not None], np.int32))
    if problem is not None:
        raise problem
    if failed:
        raise ValueError("process 0 stopped; see its message")
    return int(value)


def greatest(value: Callable[[], int]) -> Callable[[], int]:
    """Start a maximum over all processes; the returned function waits for it and returns it.

    Every process must call this at the same point between its steps. The devices receive it before the next
    step, so waiting for the result never waits for that step. A single process returns its own value.
    """
    if jax.process_count() == 1:
        return value
    mesh = Mesh(np.array(jax.devices()), ("all",))
    mine = np.full(jax.local_device_count(), value(), np.int32)
    values = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("all")), mine)
    answer = _greatest_of(mesh)(values)
    return lambda: int(answer)


@functools.cache
def _greatest_of(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))


def share_of_rows(rows: Sharding) -> tuple[int, int]:
    """Return which shard of a batch's rows this process makes: (index of the shard, number of shards).

    `rows` is the sharding of (B, N) arrays. The shards are those of `based_jax.data.train_iterator`.
    Processes that hold the same rows (but other tokens, or other shards of the model) make the same shard;
    one whose rows are not exactly a shard makes all rows.
    """
    if jax.process_count() == 1 or not isinstance(rows, NamedSharding):
        return 0, 1
    size = rows.mesh.size  # a batch with this many rows and tokens divides over any axes of the mesh
    indices = rows.addressable_devices_indices_map((size, size)).values()
    held = sorted({index[0].indices(size)[:2] for index in indices if index is not None})
    first, count = held[0][0], sum(end - begin for begin, end in held)
    if held[-1][1] - first == count and size % count == 0 and first % count == 0:
        return first // count, size // count
    return 0, 1


def place_batch(batch: Mapping[str, Any], rows: Sharding) -> dict[str, jax.Array]:
    """Build arrays over the devices of all processes from the rows that each made (see `share_of_rows`)."""
    if jax.process_count() == 1 or not isinstance(rows, NamedSharding):
        return jax.device_put(dict(batch), rows)
    part, parts = share_of_rows(rows)

    def shared(array: np.ndarray) -> jax.Array:
        first, shape = part * len(array), (parts * len(array), *array.shape[1:])

        def shard(index: Any) -> np.ndarray:
            begin, end, _ = index[0].indices(shape[0])
            return array[(slice(begin - first, end - first), *index[1:])]

        return jax.make_array_from_callback(shape, rows, shard)

    return {name: shared(array) for name, array in batch.items()}


def on_main(tree: Any) -> Any:
    """Gather arrays from all processes onto the main process's host; None in the others.

    Gathers one array at a time: only the main host ever holds them all.
    """
    if jax.process_count() == 1:
        return tree

    def gather(leaf: jax.Array) -> np.ndarray | None:
        found = multihost_utils.process_allgather(leaf, tiled=True)
        return found if is_main() else None

    found = jax.tree.map(gather, tree)
    return found if is_main() else None
