"""Run `python -m benchmarks NAME ...`: one command per question, each with a terminal report and JSON.

A command is a frozen dataclass whose fields are its flags. Its `run(command)` measures, prints and writes,
and returns the exit status; `command` is the command line, for the report. Only the module of the command
that runs is imported: a rented GPU machine lacks most of the others' dependencies.
"""

import importlib.util
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from based_jax.command import fail, parse, run
from benchmarks.flags import parse_plainly

PROGRAM = "python -m benchmarks"


class Command(NamedTuple):
    """A command: its module, the name of the dataclass there, and its purpose."""

    module: str
    options: str
    purpose: str


COMMANDS = {
    "adopt": Command("gpu.adopt", "Adopt", "write kept results and reports of a GPU: tables, pages, figures"),
    "decode": Command(
        "decode.command", "Decode", "time and memory per generated token, of Based and its baselines"
    ),
    "gpu": Command("gpu.command", "Gpu", "correctness and speed of the fused kernels on this GPU"),
    "inspect": Command("gpu.static.inspect", "Inspect", "what the kernels need on an H200, without one"),
    "mixers": Command("ops.mixers", "Mixers", "time and memory of every sequence mixer, by length"),
    "mqar": Command("models.mqar", "Mqar", "training speed on associative recall, against torch"),
    "ops": Command("ops.command", "Ops", "time and memory of the ops, side by side"),
    "static": Command("gpu.static.command", "Static", "what whole models need on a GPU, without one"),
    "train": Command("models.train", "Train", "training speed of language models, against torch"),
}
"""Name on the command line -> the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; return its exit status (130: interrupted).

    Raises:
        SystemExit: status 2 for flags that do not parse, 0 after `--help`.
        ValueError: a flag's value makes no sense.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        print(usage())
        raise SystemExit(0)
    if name not in COMMANDS:
        fail(PROGRAM, f"command = {name!r}: expected one of {', '.join(COMMANDS)}; --help describes them")
    found = COMMANDS[name]
    options = getattr(importlib.import_module(f"benchmarks.{found.module}"), found.options)
    prog = f"{PROGRAM} {name}"
    if importlib.util.find_spec("tyro") is None:
        flags = parse_plainly(options, arguments[1:], prog)
    else:
        flags = parse(options, arguments[1:], prog=prog, pairs=False)
    return flags.run(shlex.join([*PROGRAM.split(), *arguments]))


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<12}{command.purpose}" for name, command in COMMANDS.items()]
    return "\n".join([f"usage: {PROGRAM} NAME [flags]; NAME --help lists its flags", "", *lines])


if __name__ == "__main__":
    run(PROGRAM, main, cached=False)
