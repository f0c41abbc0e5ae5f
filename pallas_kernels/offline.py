"""Lower kernels for a GPU on a machine without one: a real check of what the compiler accepts."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
from jax.sharding import AbstractMesh, use_abstract_mesh

from pallas_kernels.checks import expect

_FOR_GPU: ContextVar[str | None] = ContextVar("for_gpu", default=None)

H200 = "NVIDIA H200"

CAPABILITIES = {"A100": 80, "RTX 4090": 89, "L40S": 89, "H100": 90, "H200": 90, "B200": 100}
"""Part of a GPU's name -> its compute capability times 10."""


def is_lowered_for_gpu() -> bool:
    """Whether the code traced now is meant for a GPU that is not there (`lowering_for`)."""
    return _FOR_GPU.get() is not None


def capability() -> int | None:
    """Compute capability, times 10, of the GPU that is not there (`lowering_for`); None for one that is.

    Raises:
        ValueError: no capability is known for its name.
    """
    kind = _FOR_GPU.get()
    if kind is None:
        return None
    found = next((number for name, number in CAPABILITIES.items() if name in kind), None)
    expect(found is not None, "device_kind", kind, f"the name of one of {', '.join(CAPABILITIES)}")
    return found


@contextlib.contextmanager
def lowering_for(device_kind: str = H200) -> Iterator[None]:
    """Inside, `jax.jit(f).trace(...).lower(lowering_platforms=("cuda",))` needs no GPU."""
    token = _FOR_GPU.set(device_kind)
    try:
        with _abstract_gpu(device_kind):
            yield
    finally:
        _FOR_GPU.reset(token)


def _abstract_gpu(device_kind: str) -> contextlib.AbstractContextManager[Any]:
    """From jax 0.11 on a kernel asks which GPU it is lowered for; before, it assumes Hopper."""
    version = tuple(int(part) for part in jax.__version__.split(".")[:2])
    if version < (0, 11):
        return contextlib.nullcontext()
    from jax.sharding import AbstractDevice

    options: dict[str, Any] = {"device_kind": device_kind, "num_cores": None, "platform": "gpu"}
    return use_abstract_mesh(AbstractMesh((1,), ("device",), abstract_device=AbstractDevice(**options)))


def lower(function: Callable[..., Any], *arguments: Any, device_kind: str = H200) -> jax.stages.Lowered:
    """`function` lowered for CUDA; `arguments` are arrays or `jax.ShapeDtypeStruct`s.

    Raises:
        NotImplementedError, ValueError: an operation that the kernel compiler does not have.
    """
    with lowering_for(device_kind):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
