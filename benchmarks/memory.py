"""Measure available memory, and the peak memory of a call."""

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

GIB = 2**30
MIB = 2**20

SETTLE_SECONDS = 0.1
"""Seconds to wait: XLA frees a call's scratch memory some 10 ms after the result is ready."""

_Result = TypeVar("_Result")


def available_bytes() -> int:
    """Return the RAM that a new program could use without swapping."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return _proc_field("/proc/meminfo", "MemAvailable")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: all RAM


def with_peak(call: Callable[[], _Result]) -> tuple[_Result, int | None]:
    """Return the result of `call` and the bytes by which the resident memory rose at its peak.

    The kernel's high-water mark is reset first, so earlier calls do not count; None where the system
    offers no such reset. Includes what the allocator and thread pools take, so it is coarse below 10 MiB.
    """
    time.sleep(SETTLE_SECONDS)
    _return_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _proc_field("/proc/self/status", "VmRSS")
    except (OSError, KeyError):
        return call(), None
    result = call()
    return result, max(0, _proc_field("/proc/self/status", "VmHWM") - before)


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
