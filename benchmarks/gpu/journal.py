"""Reports on disk that survive the process that writes them, and detection of a lost device.

A report is one JSON object: benchmark (the command), schema, complete, command, machine, settings, rows, and
keys of the command. JAX is imported only to query devices: supervising and reading do not need it.
"""

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from based_jax.command import one_line

SCHEMA = 2
"""Version; increased if a key changes its name or meaning."""

DEVICE_LOST = 75
"""Exit status of a process whose device stopped answering; the supervisor starts another one."""

BROKE = "the process ended, or the device was lost, while it ran"


class DeviceLostError(RuntimeError):
    """The device no longer adds two numbers: only a new process can use it again."""


def save(report: Mapping[str, Any], path: Path) -> None:
    """Write the report atomically, one line per row: a process killed meanwhile leaves the old file.

    A value that JSON cannot represent (NaN) is a bug and raises ValueError.
    """
    head = json.dumps({key: report[key] for key in report if key != "rows"}, indent=1, allow_nan=False)
    rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in report["rows"])
    partial = path.with_name(path.name + ".partial")
    partial.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n')
    partial.replace(path)


def load(path: Path, benchmarks: Collection[str]) -> dict[str, Any]:
    """Read a report of one of the commands `benchmarks`.

    Raises:
        ValueError: the file is not such a report; the message names it.
        OSError: the file cannot be read.
    """
    try:
        report = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON, or cut off ({error})") from None
    if not isinstance(report, dict) or not {"benchmark", "schema", "machine", "rows"} <= report.keys():
        raise ValueError(f"{path}: expected a report, with benchmark, schema, machine and rows")
    if report["benchmark"] not in benchmarks:
        raise ValueError(f"{path}: a report of {report['benchmark']!r}; expected {' or '.join(benchmarks)}")
    if report["schema"] != SCHEMA:
        raise ValueError(f"{path}: has schema {report['schema']!r}; this version reads {SCHEMA}")
    return report


def finite(value: Any) -> Any:
    """Return `value` with None for each float in it that is not finite, which JSON cannot represent."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_device(error: BaseException) -> None:
    """Check the device by a simple sum.

    Raises:
        DeviceLostError: the sum fails, so `error` destroyed the device's context.
    """
    import jax
    import jax.numpy as jnp

    try:
        answer = int(jax.block_until_ready(jnp.arange(4) + 1).sum())
    except RuntimeError:  # what the XLA runtime raises
        raise DeviceLostError(one_line(error)) from error
    if answer != 10:
        raise DeviceLostError(f"the device computes 1 + 2 + 3 + 4 = {answer} after {one_line(error)}")
