"""What a study times: candidates, each of which compiles a program for a length and a pass."""

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

FORWARD = "forward"
FORWARD_BACKWARD = "forward_backward"
"""Passes of ops and mixers: the output; the output and gradients."""


@dataclass(frozen=True)
class Program:
    """One candidate, compiled for one length and pass."""

    call: Callable[[], Any]
    """runs it once and returns when it is done"""
    compile_seconds: float | None = None
    temp_bytes: int | None = None
    """scratch memory that the compiler planned; None without a compiler's plan"""
    needed_bytes: int | None = None
    """scratch memory, arguments and results (an estimate without a compiler's plan)"""


@dataclass(frozen=True)
class Candidate:
    """A row of the table."""

    name: str
    label: str
    framework: str
    prepare: Callable[[int, str], Program]
    """compiles it for a length and a pass"""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """pass that it lacks -> why"""


def compile_jitted(
    function: Any, arguments: list[Any], carried: int | None = None, result: int = -1
) -> Program:
    """Compile a jitted function for its arguments; the result `result` replaces the donated `carried`."""
    start = time.perf_counter()
    compiled = function.lower(*arguments).compile()
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    temp = needed = None
    if memory is not None:  # a donated argument shares memory with its result
        temp = memory.temp_size_in_bytes
        needed = temp + memory.argument_size_in_bytes + memory.output_size_in_bytes
        needed -= memory.alias_size_in_bytes

    def call() -> Any:
        results = jax.block_until_ready(compiled(*arguments))
        if carried is not None:
            arguments[carried] = results[result]
        return results

    return Program(call, compile_seconds=seconds, temp_bytes=temp, needed_bytes=needed)


def without_torch(passes: Sequence[str]) -> dict[str, str]:
    """Return what candidates in torch lack: all passes, if torch is not installed."""
    return {} if importlib.util.find_spec("torch") else dict.fromkeys(passes, "torch is not installed")
