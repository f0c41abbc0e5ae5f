"""`python -m benchmarks NAME ...`: one command per question, each with a terminal report and JSON.

A command is a frozen dataclass whose fields are its flags and whose `run(command)` measures, shows, writes
and returns the exit status; `command` is the line that was typed, for the report.
"""

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import tyro

from based_jax.command import parse, run
from benchmarks.conv_basis import ConvBasis
from benchmarks.decode import Decode
from benchmarks.flags import PROGRAM, command_line
from benchmarks.gpu import Gpu
from benchmarks.mixers import Mixers
from benchmarks.mqar import Mqar
from benchmarks.ops import Ops
from benchmarks.train import Train

COMMANDS = {
    "conv_basis": ConvBasis(),
    "decode": Decode(),
    "gpu": Gpu(),
    "mixers": Mixers(),
    "mqar": Mqar(),
    "ops": Ops(),
    "train": Train(),
}
"""Name on the command line -> the command with its default flags."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns its exit status (130: interrupted).

    Raises:
        SystemExit: status 2 for flags that do not parse, 0 after `--help`.
        ValueError: a flag's value makes no sense.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    descriptions = {name: inspect.getdoc(command) or "" for name, command in COMMANDS.items()}
    commands: Any = tyro.extras.subcommand_type_from_defaults(COMMANDS, descriptions)
    return parse(commands, arguments, prog=PROGRAM).run(command_line(arguments))


if __name__ == "__main__":
    run(PROGRAM, main)
