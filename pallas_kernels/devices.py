"""Properties of the target GPU: the one that runs the program, or one that it is only compiled for.

Triton's products need compute capability 8.0. Newer families differ in the shared memory of a program; a row
of a tuning table has the bytes that its variant needs (`tuning.py`). Nothing here has been compiled for GPUs
below 8.0 or of other makers.
"""

import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax

from pallas_kernels.launch import is_interpreted


@dataclass(frozen=True)
class Family:
    """GPUs of one compute capability."""

    capability: str
    shared: int
    """bytes of shared memory that one program may have (CUDA Programming Guide, "Compute Capabilities")"""
    names: tuple[str, ...]
    """prefixes of the names of such GPUs; jax can lower for the first one without such a GPU"""
    warps: int = 64
    """maximum warps on one multiprocessor at a time"""
    programs: int = 32
    """maximum programs on one multiprocessor at a time"""


FAMILIES = (
    Family("7.0", 98_304, ("Tesla V100",)),
    Family("7.5", 65_536, ("Tesla T4", "NVIDIA T4"), 32, 16),
    Family("8.0", 166_912, ("NVIDIA A100", "NVIDIA A30", "NVIDIA A800")),
    Family("8.6", 101_376, ("NVIDIA A10", "NVIDIA A10G", "NVIDIA A40", "NVIDIA GeForce RTX 3090"), 48, 16),
    Family("8.9", 101_376, ("NVIDIA L4", "NVIDIA L40", "NVIDIA L40S", "NVIDIA GeForce RTX 4090"), 48, 24),
    Family("9.0", 232_448, ("NVIDIA H100", "NVIDIA H200", "NVIDIA GH200", "NVIDIA H800", "NVIDIA H20")),
    Family("10.0", 232_448, ("NVIDIA B200", "NVIDIA GB200")),
    Family("10.3", 232_448, ("NVIDIA B300", "NVIDIA GB300")),
    Family("12.0", 101_376, ("NVIDIA RTX PRO 6000", "NVIDIA GeForce RTX 5090"), 48, 24),
    Family("12.1", 101_376, ("NVIDIA GB10",), 48, 24),
)
"""Used for GPUs that are only compiled for: a present GPU reports its own capability."""

OLDEST = (8, 0)
"""Compute capability that the kernels need."""

SMALLEST = 101_376
"""Bytes of shared memory per program on every GPU from `OLDEST` on."""

TARGET: ContextVar[str | None] = ContextVar("target", default=None)
"""Name of an absent GPU that is lowered for; `offline.lowering_for` sets it."""


@dataclass(frozen=True)
class Gpu:
    """The target GPU of the current trace."""

    kind: str
    """its name, such as "NVIDIA H200" """
    capability: str | None
    """such as "9.0"; None if neither jax nor `FAMILIES` knows it; "gfx..." for AMD GPUs"""

    def __str__(self) -> str:
        return f"{self.kind} ({self.capability or 'of unknown compute capability'})"

    @property
    def shared(self) -> int:
        """Bytes of shared memory that one program may have."""
        return next((x.shared for x in FAMILIES if x.capability == self.capability), SMALLEST)


def family(kind: str) -> Family | None:
    """Return the family of a GPU by its name, as "NVIDIA A100-SXM4-80GB"; None if it is not in `FAMILIES`."""
    return next((x for x in FAMILIES if any(re.match(rf"{name}\b", kind) for name in x.names)), None)


def current() -> Gpu | None:
    """Return the target GPU; None if jax has no GPU, and in the interpreter.

    As in jax's own lowering this is the GPU of an abstract device, else jax's default device.
    """
    if is_interpreted():
        return None
    device = _default_device()
    kind = TARGET.get()
    if kind is None:
        abstract: Any = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
        kind = None if abstract is None else abstract.device_kind
    is_gpu = device.platform in ("gpu", "cuda", "rocm")
    if kind is not None and not (is_gpu and kind == device.device_kind):
        found = family(kind)
        return Gpu(kind, found and found.capability)
    if not is_gpu:
        return None
    return Gpu(device.device_kind, getattr(device, "compute_capability", None))


def _default_device() -> Any:
    chosen: Any = getattr(jax.config, "jax_default_device", None)
    if chosen is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=chosen)[0] if isinstance(chosen, str) else chosen


def shared_memory() -> int:
    """Return the shared memory of one program in bytes; the maximum of all families if there is no target."""
    gpu = current()
    return max(x.shared for x in FAMILIES) if gpu is None else gpu.shared


def cannot_run() -> str | None:
    """Return why no kernel runs on the target GPU, or None."""
    gpu = current()
    if gpu is None:
        return None
    numbers = re.fullmatch(r"(\d+)\.(\d+)", gpu.capability or "")  # AMD's are as "gfx942"
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"runs on NVIDIA GPUs of compute capability {oldest} and newer, and this is {gpu}"
    if not gpu.kind.startswith("NVIDIA "):  # as drivers named GPUs until 2020
        return f"jax lowers kernels for GPUs whose name begins with 'NVIDIA', and this is {gpu.kind!r}"
    return None
