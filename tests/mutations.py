"""Check that the suite catches the faults of `tests/faults.toml`: ``python -m tests.mutations``.

Each fault is planted in a copy of the checkout, and the tests that cover its code are run: first the core
ones, as in `make check`, then, if those pass, all that `make test` runs. The exit status is 1 if the suite
misses a fault. `--write` writes the table to tests/mutations.md.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "mutations.md"

HEAD = """# Planted faults, and the test that caught each

Written by `python -m tests.mutations --write`, which plants each fault of `tests/faults.toml` in a copy of
the checkout and runs the tests that cover its code. A fault caught in `check` fails `make check`; one caught
in `test` fails `make test` only.
"""


class Fault(NamedTuple):
    """A replacement in one file."""

    what: str
    path: str
    old: str
    """text that occurs once in the file"""
    new: str
    tests: str
    """test files that cover this code, separated by spaces; only these are run"""


def read_faults(path: Path = ROOT / "tests" / "faults.toml") -> list[Fault]:
    """Read the planted faults; raises TypeError for a fault with other keys than those of `Fault`."""
    listed = tomllib.loads(path.read_text(encoding="utf-8"))["faults"]
    return [Fault(**{**fault, "tests": " ".join(fault["tests"])}) for fault in listed]


class Outcome(NamedTuple):
    """Which tier caught a fault (check, test or missed), and the first test that failed."""

    tier: str
    caught_by: str


def copy_checkout(to: Path) -> None:
    """Copy the files that git tracks or would track."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")[:-1]:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def first_failure(checkout: Path, tests: str, *options: str) -> str | None:
    """Run tests in a copy and return the first that fails, or None.

    Raises:
        RuntimeError: pytest ended for another reason than a failed test.
    """
    # Shared, so that programs that a fault does not change are compiled once.
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", *options, *tests.split()]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    if done.returncode in (0, 5):  # 5: the tier has none of the tests
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+)", done.stdout, flags=re.M)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout[-3000:]}")
    return failed[1]


def plant(checkout: Path, fault: Fault) -> Outcome:
    """Plant a fault in a copy, run its tests, and restore the file.

    Raises:
        RuntimeError: the text to replace is not there exactly once.
    """
    path = checkout / fault.path
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        raise RuntimeError(f"{fault.path}: {fault.old!r} occurs {text.count(fault.old)} times, expected once")
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        for tier, options in (("check", ["--core"]), ("test", [])):
            caught_by = first_failure(checkout, fault.tests, *options)
            if caught_by is not None:
                return Outcome(tier, caught_by)
    finally:
        path.write_text(text, encoding="utf-8")
    return Outcome("missed", "")


def page(outcomes: dict[Fault, Outcome]) -> str:
    """Return tests/mutations.md: the count by tier, and a row per fault."""
    lines = [HEAD, summary(outcomes), "", "| fault | in | caught in | by |", "|---|---|---|---|"]
    for fault, (tier, test) in outcomes.items():
        name = test.removeprefix("tests/").partition("[")[0]
        lines.append(f"| {fault.what} | `{fault.path}` | {tier} | `{name}` |")
    return "\n".join(lines) + "\n"


def summary(outcomes: dict[Fault, Outcome]) -> str:
    """Count the faults by tier, in one sentence."""
    tiers = [outcome.tier for outcome in outcomes.values()]
    check, missed = tiers.count("check"), tiers.count("missed")
    caught = f"`make check` catches {check}, `make test` {len(tiers) - missed}, {missed} missed"
    return f"{len(tiers)} faults: {caught}."


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="run only faults whose name or file contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="faults to run at a time (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write tests/mutations.md")
    options = parser.parse_args(argv)
    chosen = [
        fault
        for fault in read_faults()
        if not options.words or any(word in fault.what + fault.path for word in options.words)
    ]
    if not chosen or (options.write and options.words):
        parser.error("no fault matches" if not chosen else "--write runs all faults: expected no words")
    copies: SimpleQueue[Path] = SimpleQueue()

    def run(fault: Fault) -> Outcome:
        checkout = copies.get()
        try:
            found = plant(checkout, fault)
        finally:
            copies.put(checkout)
        print(f"{found.tier:6}  {fault.what}  {found.caught_by}", flush=True)
        return found

    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.jobs):
            copies.put(Path(scratch, str(number)))
            copy_checkout(Path(scratch, str(number)))
        sound = first_failure(
            Path(scratch, "0"), " ".join(sorted({t for f in chosen for t in f.tests.split()}))
        )
        if sound is not None:
            parser.exit(2, f"{sound} fails without any fault\n")
        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = dict(zip(chosen, pool.map(run, chosen), strict=True))
    print(summary(outcomes))
    if options.write:
        PAGE.write_text(page(outcomes), encoding="utf-8")
    return 1 if any(outcome.tier == "missed" for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
