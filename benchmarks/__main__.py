"""Run `python -m benchmarks NAME ...`: one command per question, each with a terminal report and JSON.

A command is a frozen dataclass whose fields are its flags. Its `run(command)` measures, prints and writes,
and returns the exit status; `command` is the command line, for the report. Only the module of the command
that runs is imported: a rented GPU machine lacks most of the others' dependencies.
"""

import importlib.util
import shlex
import sys
from collections.abc import Sequence

from based_jax.command import fail, parse, run
from benchmarks.flags import parse_plainly

PROGRAM = "python -m benchmarks"

COMMANDS = {
    "adopt": ("gpu.adopt", "write kept results and reports of a GPU: tables, pages, figures"),
    "decode": ("decode.command", "time and memory per generated token, of Based and its baselines"),
    "gpu": ("gpu.command", "correctness and speed of the fused kernels on this GPU"),
    "inspect": ("gpu.static.inspect", "what the kernels need on an H200, without one"),
    "mixers": ("ops.mixers", "time and memory of every sequence mixer, by length"),
    "mqar": ("models.mqar", "training speed on associative recall, against torch"),
    "ops": ("ops.command", "time and memory of the ops, side by side"),
    "static": ("gpu.static.command", "what whole models need on a GPU, without one"),
    "train": ("models.train", "training speed of language models, against torch"),
}
"""Name on the command line -> module with the dataclass of that name, such as `Adopt`, and its purpose."""


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
    module, _ = COMMANDS[name]
    options = getattr(importlib.import_module(f"benchmarks.{module}"), name.capitalize())
    prog = f"{PROGRAM} {name}"
    if importlib.util.find_spec("tyro") is None:
        flags = parse_plainly(options, arguments[1:], prog)
    else:
        flags = parse(options, arguments[1:], prog=prog, pairs=False)
    return flags.run(shlex.join([*PROGRAM.split(), *arguments]))


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<12}{purpose}" for name, (_, purpose) in COMMANDS.items()]
    return "\n".join([f"usage: {PROGRAM} NAME [flags]; NAME --help lists its flags", "", *lines])


if __name__ == "__main__":
    run(PROGRAM, main, cached=False)
