"""Run attack classes and count: ``python -m tests.hostile [CLASS ...] --count 500 --seed 1``.

Each class runs in a process of its own, which is killed when one attack takes too long; the run then goes on
behind that attack. The exit status is 1 if anything failed.
"""

import argparse
import importlib
import multiprocessing
import pkgutil
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

import tests.hostile
from tests.hostile.attack import serve

SECONDS, MEBIBYTES = 5.0, 200.0
"""Bounds of one attack where its class has no others; memory is what the process grows by."""

START = 240.0
"""seconds for the imports of a class and its first attack, which compile"""


def names() -> list[str]:
    """The attack classes."""
    found = (module.name for module in pkgutil.iter_modules(tests.hostile.__path__))
    return [name for name in found if name not in ("__main__", "attack")]


def run(name: str, seed: int, count: int) -> Counter[str]:
    """Run a class to its end; failures are printed as they come."""
    module = importlib.import_module(f"tests.hostile.{name}")
    seconds, memory = getattr(module, "SECONDS", SECONDS), getattr(module, "MEBIBYTES", MEBIBYTES)
    counts: Counter[str] = Counter()
    skip = 0
    while skip is not None:
        skip = _until_killed(name, seed, count, skip, seconds, memory, counts)
    return counts


def _until_killed(
    name: str, seed: int, count: int, skip: int, seconds: float, memory: float, counts: Counter[str]
) -> int | None:
    """Run from attack `skip` on; returns where to go on after a process that had to be killed, or None."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(name, seed, count, skip, theirs), daemon=True)
    process.start()
    theirs.close()
    number, what, first = skip, "its start", True
    try:
        while (message := _receive(ours, START)) is not None:
            number, what = message
            status, why, grown = _receive(ours, START if first else seconds)
            if status != "FAILED" and not first and grown > memory:
                status, why = "FAILED", f"grew by {grown:.0f} MiB: expected at most {memory:.0f}"
            _count(counts, status, f"{name} {number}: {what}", why)
            first = False
        return None
    except (TimeoutError, EOFError) as error:
        why = f"took over {seconds:g} s" if isinstance(error, TimeoutError) else "ended the process"
        _count(counts, "FAILED", f"{name} {number}: {what}", why)
        return number + 1 if number + 1 < count else None
    finally:
        process.kill()
        process.join()


def _receive(results: Connection, seconds: float) -> Any:
    if not results.poll(seconds):
        raise TimeoutError
    return results.recv()


def _count(counts: Counter[str], status: str, what: str, why: str) -> None:
    counts[status] += 1
    if status == "FAILED":
        print(f"FAILED {what}: {why}", flush=True)


def main() -> int:
    """Run the classes that are named, or all."""
    parser = argparse.ArgumentParser(description="Run attack classes and count.")
    parser.add_argument("classes", nargs="*", metavar="CLASS", help=f"of {', '.join(names())}; default: all")
    parser.add_argument("--count", type=int, default=200, help="attacks of each class")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows, failed = [], 0
    for name in options.classes or names():
        module = importlib.import_module(f"tests.hostile.{name}")
        start = time.monotonic()
        counts = run(name, options.seed, options.count)
        failed += counts["FAILED"]
        about = (module.__doc__ or "").partition("\n")[0].rstrip(".")
        numbers = [counts["survived"], counts["refused"], counts["FAILED"], round(time.monotonic() - start)]
        rows.append(f"| {about} | {sum(counts.values())} | {' | '.join(map(str, numbers))} |")
        print(rows[-1], flush=True)
    print("\n| class | attacks | survived | refused | failed | seconds |\n|---|---|---|---|---|---|")
    print("\n".join(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
