"""Record every start of a run in launches.jsonl: command, code, versions, machine, devices."""

import datetime
import json
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import jax
from jax.sharding import NamedSharding, Sharding

from based_jax.training.devices import hosts

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
FILE = "launches.jsonl"


def record_launch(workdir: Path, rows: Sharding) -> None:
    """Append one line, in the main process; `rows` is the sharding of batches."""
    if not hosts.is_main():
        return
    launch = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.orig_argv),
        "commit": _commit(Path(__file__).resolve().parents[3]),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processes": jax.process_count(),
        "devices": jax.device_count(),
        "device_kind": jax.devices()[0].device_kind,
        "mesh": dict(rows.mesh.shape) if isinstance(rows, NamedSharding) else None,
    }
    with (workdir / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(launch) + "\n")


def _commit(checkout: Path) -> str | None:
    """Return the code's commit, with "+" if files differ from it; None outside a git checkout."""
    if not (checkout / ".git").exists():
        return None
    try:
        command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
