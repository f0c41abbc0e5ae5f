"""Profile where a training step spends its time on a CPU, with XLA's own profiler.

XLA's events of operations that several threads share end before the work does. So operations are timed in a
process with one thread, and the gain from threads is measured on the whole step, without the profiler.
"""

import collections
import contextlib
import multiprocessing
import os
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.profiler import ProfileData, ProfileOptions

from benchmarks.models.hlo_kinds import Operation, operations
from benchmarks.models.train_workload import VARIANTS, Sizes, Workload
from benchmarks.tables import blocks, table

EXPLAINED = (
    "One thread: time of a step's operations in a process of one thread, by XLA's profiler. split: share of "
    "it in operations that XLA divides among cores when it may; the others run on one, beside others if they "
    "need not wait."
)


def profile(sizes: Sizes, model: str) -> dict[str, Any]:
    """Return the time of a step, in all and by kind of operation and part of the model, in seconds."""
    workload = Workload(sizes, model)
    compiled = workload.train_step(VARIANTS["jax"]).compile()
    whole = _seconds_of_steps(compiled, workload, sizes.steps)
    splits = {name for name, operation in operations(compiled.as_text()).items() if operation.is_split}
    with _one_thread(), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        rows = pool.submit(_rows, sizes, model).result()
    for row in rows:
        row["split"] = row["operation"] in splits
    return {
        **whole,
        "one_thread_seconds": sum(row["seconds"] for row in rows),
        "kinds": _sums(rows, "kind"),
        "parts": _sums(rows, "part"),
        "operations": rows[:60],
    }


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Within the block, started processes have one thread for XLA's operations."""
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"
    try:
        yield
    finally:
        os.environ.pop("NPROC")
        if before is not None:
            os.environ["NPROC"] = before


def _rows(sizes: Sizes, model: str) -> list[dict[str, Any]]:
    """Return the operations of a step and their seconds, the longest first."""
    workload = Workload(sizes, model)
    compiled = workload.train_step(VARIANTS["jax"]).compile()
    known, architecture = operations(compiled.as_text()), workload.architecture
    mixers = [architecture.layer(index).mixer for index in range(architecture.num_layers)]
    rows = []
    for name, seconds in _traced(compiled, workload, sizes.steps).items():
        operation = known.get(name, Operation("elementwise", "", False))
        part, direction = part_of(operation.name, mixers)
        row = {"operation": name, "kind": operation.kind, "part": part, "direction": direction}
        rows.append({**row, "seconds": seconds, "path": operation.name})
    return sorted(rows, key=lambda row: -row["seconds"])


def part_of(path: str, mixers: list[str]) -> tuple[str, str]:
    """Return the part of the model that an operation's path is in, and "forward", "backward" or "update"."""
    direction = "backward" if "transpose(jvp" in path else "forward" if "jvp" in path else "update"
    if layer := re.search(r"layers_(\d+)/(\w+)", path):
        part = layer[2]
        if part != "mixer":
            return "norms" if part.startswith("norm") else part, direction
        mixer = mixers[int(layer[1])]
        rest = path[layer.end() :]
        inside = re.search(rf"/({_INSIDE})\b", rest)
        return f"{mixer}: {_GROUPS.get(inside[1], inside[1]) if inside else 'rest'}", direction
    for word in ("cross_entropy", "optimizer", "final_norm"):
        if word in path:
            return "norms" if word == "final_norm" else word, direction
    return ("embedding" if "LanguageModel" in path else "rest"), direction


_INSIDE = "q|k|v|out|in_proj|rotary|short_conv|softmax_attention|taylor_attention"
_GROUPS: dict[str, str] = dict.fromkeys(["q", "k", "v", "out", "in_proj"], "projections")


def _sums(rows: Iterable[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Sum time by kind or part: in all, in operations that are split, forward and backward."""
    found: dict[str, dict[str, float]] = collections.defaultdict(lambda: collections.defaultdict(float))
    for row in rows:
        sums = found[row[key]]
        sums["seconds"] += row["seconds"]
        sums["split_seconds"] += row["seconds"] if row["split"] else 0
        sums[f"{row['direction']}_seconds"] += row["seconds"]
    return [{key: name, **sums} for name, sums in sorted(found.items(), key=lambda item: -item[1]["seconds"])]


def _seconds_of_steps(compiled: Any, workload: Workload, steps: int) -> dict[str, float]:
    """Return median wall-clock and processor seconds of a step with all threads."""
    step = _stepper(compiled, workload)
    step()
    walls, processor = [], []
    for _ in range(max(steps, 3)):
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        step()
        walls.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_SELF)
        processor.append((after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime))
    user, system = (float(x) for x in np.median(processor, axis=0))
    wall = float(np.median(walls))
    return {
        "seconds": wall,
        "seconds_min": min(walls),
        "user_seconds": user,
        "system_seconds": system,
        "cores": (user + system) / wall,
    }


def _stepper(compiled: Any, workload: Workload) -> Callable[[], None]:
    state, batch = workload.first_arguments()

    def step() -> None:
        nonlocal state
        state, metrics = compiled(state, batch)
        jax.block_until_ready((state, metrics))

    return step


def _traced(compiled: Any, workload: Workload, steps: int) -> dict[str, float]:
    """Return name of each operation -> seconds of a step in it, without named operations inside it."""
    step = _stepper(compiled, workload)
    step()
    options = ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(steps):
                step()
        (file,) = Path(folder).rglob("*.xplane.pb")
        data = ProfileData.from_file(str(file))
    totals: dict[str, float] = collections.defaultdict(float)
    for plane in data.planes:
        for line in plane.lines:
            events = []
            for event in line.events:
                name = dict(event.stats).get("hlo_op")
                if name is not None:
                    events.append((event.start_ns, -event.duration_ns, str(name)))
            _add_own_time(totals, events)
    return {name: time / steps / 1e9 for name, time in totals.items()}


def _add_own_time(totals: dict[str, float], events: list[tuple[float, float, str]]) -> None:
    """Add each event's time without that of events inside it; (start, -duration, name) of one thread."""
    open_events: list[tuple[float, str]] = []
    for start, negative, name in sorted(events):
        while open_events and open_events[-1][0] <= start:
            open_events.pop()
        totals[name] -= negative
        if open_events:
            totals[open_events[-1][1]] += negative
        open_events.append((start - negative, name))


def text(report: dict[str, Any]) -> str:
    """Return the profile of each model in Markdown: by kind of operation and by part."""
    parts = []
    for row in report["rows"]:
        whole = row["one_thread_seconds"]
        parts.append(
            f"{row['model']}: {1000 * row['seconds']:.0f} ms a step (best {1000 * row['seconds_min']:.0f}), "
            f"{row['user_seconds']:.2f} s of processor time and {row['system_seconds']:.2f} s of the "
            f"system's, {row['cores']:.2f} cores; on one thread {1000 * whole:.0f} ms"
        )
        for key, sums in (("kind", row["kinds"]), ("part", row["parts"])):
            columns = (key, "one thread, ms", "share", "forward, ms", "backward, ms", "update, ms", "split")
            parts.append(table(columns, (_cells(key, entry, whole) for entry in sums)))
    return blocks(*parts, EXPLAINED)


def _cells(key: str, entry: dict[str, Any], whole: float) -> list[str]:
    seconds = entry["seconds"]
    ways = (entry.get(f"{way}_seconds", 0) for way in ("forward", "backward", "update"))
    return [
        entry[key],
        f"{1000 * seconds:.1f}",
        f"{100 * seconds / whole:.1f}%",
        *(f"{1000 * way:.1f}" for way in ways),
        f"{100 * entry['split_seconds'] / max(seconds, 1e-12):.0f}%",
    ]
