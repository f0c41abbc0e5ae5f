"""Lower kernels for a GPU on a machine without one, to check that the compiler accepts them."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, use_abstract_mesh

from pallas_kernels import devices

H200 = "NVIDIA H200"


def is_lowered_for_gpu() -> bool:
    """Return whether the current trace is for an absent GPU (`lowering_for`)."""
    return devices.TARGET.get() is not None


def capability() -> int | None:
    """Return the compute capability, times 10, of the absent GPU (`lowering_for`); None for a present one.

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
def lowering_for(device_kind: str | None = H200) -> Iterator[None]:
    """Allow `jax.jit(f).trace(...).lower(lowering_platforms=("cuda",))` without a GPU inside the block.

    None ends that within an outer block.
    """
    if device_kind is None and not is_lowered_for_gpu():
        yield
        return
    token = devices.TARGET.set(device_kind)
    try:
        with _abstract_gpu(device_kind):
            yield
    finally:
        devices.TARGET.reset(token)


def _abstract_gpu(device_kind: str | None) -> contextlib.AbstractContextManager[Any]:
    """Set the GPU that jax >= 0.11 lowers kernels for; older releases assume Hopper."""
    if jax.__version_info__ < (0, 11):
        return contextlib.nullcontext()
    if device_kind is None:
        return use_abstract_mesh(AbstractMesh((), ()))
    from jax.sharding import AbstractDevice

    # jax has its own list of names; other GPUs of a family compile the same.
    known = devices.family(device_kind)
    kind = known.names[0] if known else device_kind
    options: dict[str, Any] = {"device_kind": kind, "num_cores": None, "platform": "gpu"}
    device = AbstractDevice(**options)
    return use_abstract_mesh(AbstractMesh((1,), ("device",), (AxisType.Auto,), abstract_device=device))


def lower(function: Callable[..., Any], *arguments: Any, device_kind: str = H200) -> jax.stages.Lowered:
    """Lower `function` for CUDA; `arguments` are arrays or `jax.ShapeDtypeStruct`s.

    Raises:
        NotImplementedError, ValueError: an operation that the kernel compiler does not support.
    """
    with lowering_for(device_kind):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
