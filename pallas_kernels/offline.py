"""Lower kernels for a GPU on a machine without one: a real check of what the compiler accepts."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, use_abstract_mesh

from pallas_kernels import devices

H200 = "NVIDIA H200"


def is_lowered_for_gpu() -> bool:
    """Whether the code traced now is meant for a GPU that is not there (`lowering_for`)."""
    return devices.TARGET.get() is not None


def capability() -> int | None:
    """Compute capability, times 10, of the GPU that is not there (`lowering_for`); None for one that is.

    Raises:
        ValueError: no capability is known for its name.
    """
    if not is_lowered_for_gpu():
        return None
    gpu = devices.current()
    if gpu is None or gpu.capability is None:
        wanted = "expected the name of a GPU in devices.FAMILIES"
        raise ValueError(f"device_kind = {devices.TARGET.get()!r}: {wanted}")
    return int(gpu.capability.replace(".", ""))


@contextlib.contextmanager
def lowering_for(device_kind: str = H200) -> Iterator[None]:
    """Inside, `jax.jit(f).trace(...).lower(lowering_platforms=("cuda",))` needs no GPU."""
    token = devices.TARGET.set(device_kind)
    try:
        with _abstract_gpu(device_kind):
            yield
    finally:
        devices.TARGET.reset(token)


def _abstract_gpu(device_kind: str) -> contextlib.AbstractContextManager[Any]:
    """From jax 0.11 on a kernel asks which GPU it is lowered for; before, it assumes Hopper."""
    version = tuple(int(part) for part in jax.__version__.split(".")[:2])
    if version < (0, 11):
        return contextlib.nullcontext()
    from jax.sharding import AbstractDevice

    # jax has a list of names of its own; others of the family compile alike.
    known = devices.family(device_kind)
    kind = known.names[0] if known else device_kind
    options: dict[str, Any] = {"device_kind": kind, "num_cores": None, "platform": "gpu"}
    device = AbstractDevice(**options)
    return use_abstract_mesh(AbstractMesh((1,), ("device",), (AxisType.Auto,), abstract_device=device))


def lower(function: Callable[..., Any], *arguments: Any, device_kind: str = H200) -> jax.stages.Lowered:
    """`function` lowered for CUDA; `arguments` are arrays or `jax.ShapeDtypeStruct`s.

    Raises:
        NotImplementedError, ValueError: an operation that the kernel compiler does not have.
    """
    with lowering_for(device_kind):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
