"""Cache compiled programs on disk, so that repeated commands start without compiling.

jax stores them in `jax_compilation_cache_dir`, which is unset by default. This module sets a default for the
commands, with a bound on the size. jax's own bound would read one file per cached program whenever it adds a
program, and stop adding for good once one of these files is missing.
"""

import contextlib
import hashlib
import os
import platform
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
from jaxlib import utils  # pyright: ignore[reportAttributeAccessIssue]

MAX_BYTES = 2 * 2**30  # more than this is removed at the start of a command, least recently used first

# Cache every program, not only those that take a second to compile: small ones take 2 to 10 kB each.
_PREFIX = "jax_persistent_cache_min_"
_SETTINGS = {f"{_PREFIX}compile_time_secs": 0.0, f"{_PREFIX}entry_size_bytes": -1}
# Lines of /proc/cpuinfo that are equal on processors of one kind: x86, then ARM.
_KIND = ("model name", "flags", "CPU part", "Features")


def keep_programs() -> None:
    """Cache compiled programs of this process in `default_directory`, unless the user has configured it.

    JAX_COMPILATION_CACHE_DIR sets another directory, without a bound, and JAX_ENABLE_COMPILATION_CACHE=0
    disables the cache. If the directory cannot be written, the command prints one line on stderr and runs
    without a cache.
    """
    config: Any = jax.config  # its settings are unknown to type checkers
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        return
    try:
        directory = default_directory()
        directory.mkdir(parents=True, exist_ok=True)
        prune(directory.parent, MAX_BYTES)
        with tempfile.TemporaryFile(dir=directory) as file:  # fails on a full or read-only disk
            file.write(bytes(4096))
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        print(f"compiled programs are not kept ({error}): set JAX_COMPILATION_CACHE_DIR", file=sys.stderr)
        return
    config.update("jax_compilation_cache_dir", str(directory))
    for name, value in _SETTINGS.items():
        if name.upper() not in os.environ:
            config.update(name, value)
    # Programs that cannot be read or written are compiled: slower, but not worth a warning for each.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    _hide_false_alarms()


def default_directory() -> Path:
    """Return ``~/.cache/based_jax/compilation/CPU``, or a path in XDG_CACHE_HOME; CPU is a processor digest.

    Programs use the instructions of their processor, so machines that share a home directory need separate
    directories. RuntimeError: there is no home directory.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG Base Directory Specification requires ignoring relative paths.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    kind = hashlib.sha256(_processor().encode()).hexdigest()[:12]
    return root / "based_jax" / "compilation" / kind


def prune(directory: Path, max_bytes: int) -> None:
    """Remove the least recently used files below a directory until at most `max_bytes` remain."""
    files = []
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                found = os.stat(path := os.path.join(folder, name))
                files.append((max(found.st_atime, found.st_mtime), found.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            return
        Path(path).unlink(missing_ok=True)
        total -= size


def _processor() -> str:
    """Return a text that distinguishes processors with different instructions."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "\n".join(sorted({line for line in lines if line.startswith(_KIND)}))
    return f"{platform.machine()} {platform.processor()}"


def _hide_false_alarms() -> None:
    """Keep XLA from logging that each loaded program was compiled for another processor.

    For AVX-512 XLA compiles with two preferences (+prefer-no-gather, +prefer-no-scatter), which it then does
    not find among the processor's features at load time (https://github.com/openxla/xla/issues/44565).
    Programs of other processors are in other directories, and errors that matter are also exceptions.
    """
    if "avx512" in _processor() and os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "1":  # jax's own default
        utils.absl_set_min_log_level(3)
