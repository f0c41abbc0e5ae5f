"""What the GPU that is traced for offers a kernel: the one that runs, or one that is only compiled for.

Triton's products need compute capability 8.0. From there on families differ in the shared memory that a
program may have; a row of a tuning table says how much its variant needs (`tuning.py`). Below 8.0, and on
GPUs of other makers, nothing here has ever been compiled.
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
    """how the names of such GPUs begin; jax can lower for the first one without having it"""
    warps: int = 64
    """that one multiprocessor holds at a time"""
    programs: int = 32
    """that one multiprocessor holds at a time"""


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
"""A GPU that is there reports its own capability: the names are for those that are only compiled for."""

OLDEST = (8, 0)
"""Compute capability that the kernels need."""

SMALLEST = 101_376
"""Bytes of shared memory that every GPU from `OLDEST` on offers a program."""

TARGET: ContextVar[str | None] = ContextVar("target", default=None)
"""Name of a GPU that is lowered for without being there; `offline.lowering_for` sets it."""


@dataclass(frozen=True)
class Gpu:
    """The GPU that is traced for."""

    kind: str
    """its name, as "NVIDIA H200" """
    capability: str | None
    """as "9.0"; None if neither jax nor `FAMILIES` knows it; "gfx..." of an AMD GPU"""

    def __str__(self) -> str:
        return f"{self.kind} ({self.capability or 'of unknown compute capability'})"

    @property
    def shared(self) -> int:
        """Bytes of shared memory that one program may have."""
        return next((x.shared for x in FAMILIES if x.capability == self.capability), SMALLEST)


def family(kind: str) -> Family | None:
    """The family of a GPU by its name, as "NVIDIA A100-SXM4-80GB"; None if it is not in `FAMILIES`."""
    return next((x for x in FAMILIES if any(re.match(rf"{name}\b", kind) for name in x.names)), None)


def current() -> Gpu | None:
    """The GPU that is traced for; None where jax has none, and in the interpreter.

    As jax's own lowering has it: what an abstract device names, else jax's default device.
    """
    if is_interpreted():
        return None
    device = _default_device()
    kind = TARGET.get()
    if kind is None:
        abstract: Any = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
        kind = None if abstract is None else abstract.device_kind
    if kind is not None and kind != device.device_kind:
        found = family(kind)
        return Gpu(kind, found and found.capability)
    if device.platform not in ("gpu", "cuda", "rocm"):
        return None
    return Gpu(device.device_kind, getattr(device, "compute_capability", None))


def _default_device() -> Any:
    chosen: Any = getattr(jax.config, "jax_default_device", None)
    if chosen is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=chosen)[0] if isinstance(chosen, str) else chosen


def shared_memory() -> int:
    """Bytes of shared memory that one program may have; where no GPU is traced for, what the largest have."""
    gpu = current()
    return max(x.shared for x in FAMILIES) if gpu is None else gpu.shared


def cannot_run() -> str | None:
    """Why no kernel runs on the GPU that is traced for, or None."""
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
