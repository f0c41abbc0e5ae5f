"""Flags that several benchmarks share: comma lists, and paths that are checked in advance."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec

from benchmarks.memory import GIB, available_bytes
from benchmarks.ops.shapes import LENGTHS
from pallas_kernels.checks import expect


def comma_list(item: type, metavar: str) -> Any:
    """Describe a tuple flag written `a,b,c` (or `a b c`)."""

    def read(words: list[str]) -> tuple[Any, ...]:
        try:
            return tuple(item(part) for word in words for part in word.split(",") if part.strip())
        except ValueError:
            raise ValueError(f"expected {metavar}, got {' '.join(words)!r}") from None

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, tuple) and all(isinstance(part, item) for part in value),
        str_from_instance=lambda value: [",".join(map(str, value))],
    )


def expect_writable(flag: str, path: Path | None) -> None:
    """Check now, not after an hour of measuring, that a result can be written.

    Raises:
        ValueError: the file cannot be opened for writing.
    """
    if path is None:
        return
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{flag} = {str(path)!r}: cannot be written ({error.strerror or error})") from None


@dataclass(frozen=True)
class StudyFlags:
    """Flags of every command that measures against length."""

    json: Path | None = None
    """Write every number and the facts about the machine into this file."""
    lengths: Annotated[tuple[int, ...], comma_list(int, "N,N,...")] = LENGTHS
    """Tokens per row."""
    seconds: float = 60.0
    """Time budget per case, in seconds: a case that would exceed it has fewer samples, or is skipped."""
    memory_limit: float | None = None
    """Skip cases that need more than this, in GiB; half of the available RAM by default."""
    fit_from: int = 2048
    """Shortest length, in tokens, that enters the fitted growth exponents."""

    def check(self, **counts: int | None) -> None:
        """Check these flags, and that `counts`, a command's own, are at least 1 if given.

        Raises:
            ValueError: a wrong value, or a file that cannot be written.
        """
        expect(len(self.lengths) > 0, "--lengths", "", "at least one length")
        given = [("lengths", n) for n in self.lengths] + [*counts.items(), ("fit-from", self.fit_from)]
        for flag, value in given:
            expect(value is None or value >= 1, f"--{flag.replace('_', '-')}", value, "at least 1")
        for flag, value, unit in (
            ("--seconds", self.seconds, "seconds"),
            ("--memory-limit", self.memory_limit, "GiB"),
        ):
            expect(value is None or 0 < value < math.inf, flag, value, f"more than 0 {unit}")
        expect_writable("--json", self.json)

    def memory_bytes(self, input_bytes: float) -> float:
        """Return the memory limit in bytes; the inputs of the longest length must fit into it."""
        limit = available_bytes() / 2 if self.memory_limit is None else self.memory_limit * GIB
        expect(
            input_bytes < limit,
            "--lengths",
            max(self.lengths),
            f"a length whose inputs alone ({input_bytes / GIB:.1f} GiB) fit into the memory limit",
        )
        return limit
