"""Plant the faults of `tests/faults.py`, one at a time, and ask the suite: ``python -m tests.mutations``.

Each fault is planted in a copy of the checkout, where the tests that look at its code run: first the core
ones, as in `make check`, then, if they pass, those that wait for `make test`. The exit status is 1 if the
suite misses a fault. `--write` puts the table into tests/mutations.md.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "mutations.md"

HEAD = """# Faults that were planted, and what caught them

`python -m tests.mutations --write` plants each in a copy of the checkout and runs the tests that look at
its code. A fault that is caught in `check` fails `make check`; one in `test` fails `make test` only.
"""


class Answer(NamedTuple):
    """What the suite said of a fault."""

    tier: str
    """check, test or missed"""
    caught_by: str
    """the first test that failed"""


def copy_checkout(to: Path) -> None:
    """The files that git knows or would know."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def first_failure(checkout: Path, tests: str, *options: str) -> str | None:
    """Run tests in a copy; the first that fails, or None.

    Raises:
        RuntimeError: pytest ended for another reason than a failed test.
    """
    # Programs that a fault does not touch are compiled once for all.
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", *options, *tests.split()]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+)", done.stdout, flags=re.M)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout[-3000:]}")
    return failed[1]


def ask(checkout: Path, fault: Fault) -> Answer:
    """Plant a fault, run its tests, and take it out again.

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
                return Answer(tier, caught_by)
    finally:
        path.write_text(text, encoding="utf-8")
    return Answer("missed", "")


def table(answers: dict[Fault, Answer]) -> str:
    """Markdown."""
    lines = ["| fault | in | caught in | by |", "|---|---|---|---|"]
    for fault, (tier, test) in answers.items():
        name = test.removeprefix("tests/").partition("[")[0]
        lines.append(f"| {fault.what} | `{fault.path}` | {tier} | `{name}` |")
    return "\n".join(lines)


def summary(answers: dict[Fault, Answer]) -> str:
    """How many were caught where."""
    tiers = [answer.tier for answer in answers.values()]
    check = tiers.count("check")
    return (
        f"{len(tiers)} faults: `make check` catches {check}, `make test` {check + tiers.count('test')}, "
        f"{tiers.count('missed')} missed."
    )


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only faults whose name or file has one of these in it")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write tests/mutations.md")
    options = parser.parse_args(argv)
    chosen = [
        fault
        for fault in FAULTS
        if not options.words or any(word in fault.what + fault.path for word in options.words)
    ]
    if not chosen or (options.write and options.words):
        parser.error(
            "no fault has these words" if not chosen else "--write takes no words: it needs all faults"
        )
    copies: SimpleQueue[Path] = SimpleQueue()

    def answer(fault: Fault) -> Answer:
        checkout = copies.get()
        try:
            found = ask(checkout, fault)
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
            answers = dict(zip(chosen, pool.map(answer, chosen), strict=True))
    print(summary(answers))
    if options.write:
        PAGE.write_text(f"{HEAD}\n{summary(answers)}\n\n{table(answers)}\n", encoding="utf-8")
    return 1 if any(answer.tier == "missed" for answer in answers.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
