"""Facts about the machine that every timing needs, and its available memory."""

import contextlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

GIB = 2**30
MIB = 2**20

PACKAGES = ("based-jax", "jax", "jaxlib", "numpy", "torch")


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
    with contextlib.suppress(OSError):
        if found := re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text()):
            return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: all RAM
