"""Facts about the machine that every timing needs, its available memory, and the peak memory of a call."""

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

GIB = 2**30
MIB = 2**20

PACKAGES = ("based-jax", "jax", "jaxlib", "numpy", "torch")

SETTLE_SECONDS = 0.1
"""Seconds to wait: XLA frees a call's scratch memory some 10 ms after the result is ready."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def facts() -> dict[str, Any]:
    """Return JSON-ready facts; the version of a missing package is None."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "available_memory_gib": round(available_bytes() / GIB, 1),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions(PACKAGES),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return package, with underscores -> its version; None if it is missing."""
    found: dict[str, str | None] = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package.replace("-", "_")] = importlib.metadata.version(package)
        found.setdefault(package.replace("-", "_"), None)
    return found


def available_bytes() -> int:
    """Return the RAM that a new program could use without swapping."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return _proc_field("/proc/meminfo", "MemAvailable")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: all RAM


def peak_bytes(call: Callable[[], Any]) -> int | None:
    """Return the bytes by which the resident memory rises at the peak of `call`.

    The kernel's high-water mark is reset first, so earlier calls do not count; None where the system
    offers no such reset. Includes what the allocator and thread pools take, so it is coarse below 10 MiB.
    """
    time.sleep(SETTLE_SECONDS)
    _return_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _proc_field("/proc/self/status", "VmRSS")
    except (OSError, KeyError):
        call()
        return None
    call()
    return max(0, _proc_field("/proc/self/status", "VmHWM") - before)


def _return_freed_memory() -> None:
    """Ask glibc to return freed pages, or the peak would hide in them."""
    with contextlib.suppress(OSError, AttributeError):
        libc: Any = ctypes.CDLL(None)
        libc.malloc_trim(0)


def _proc_field(path: str, name: str) -> int:
    """Return a `Name:   123 kB` line of /proc in bytes."""
    match = re.search(rf"^{name}:\s+(\d+) kB", Path(path).read_text(), re.MULTILINE)
    if match is None:
        raise KeyError(name)
    return int(match.group(1)) * 1024
