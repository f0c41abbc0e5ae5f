"""Count what the host of a compiled program launches; a command buffer (a CUDA graph) is one launch."""

import re
from dataclasses import dataclass, field
from pathlib import Path

_LINE = re.compile(r"( *)(?:\d+: k(\w+)|\w+_branch:)")


@dataclass
class _Node:
    indent: int
    kind: str
    """kind of XLA's thunk, or "branch" """
    children: list["_Node"] = field(default_factory=list)

    def starts(self) -> int:
        """Launches by the host, with one iteration per loop and the larger of the branches."""
        if self.kind == "CommandBuffer":
            return 1
        inside = [child.starts() for child in self.children]
        if self.kind == "Conditional":
            return max(inside, default=0)
        return sum(inside) + (self.kind not in ("While", "branch", "program"))


def of_dump(folder: Path) -> int:
    """Return launches per iteration of the loop of a program compiled with ``xla_dump_to`` this folder.

    Raises:
        LookupError: XLA wrote no such file, or the program has no loop.
    """
    # The second file is written only if a pass changed the content of the first one.
    found = sorted(folder.glob("*thunk_sequence_after_thunk_passes.txt"))
    found = found or sorted(folder.glob("*thunk_sequence.txt"))
    if not found:
        raise LookupError("XLA wrote no list of thunks while the program was compiled")
    return starts_per_turn(max((path.read_text() for path in found), key=len))


def starts_per_turn(text: str) -> int:
    """Return launches by the host per iteration of the first loop in a list of thunks.

    Raises:
        LookupError: the program has no loop.
    """
    program = _Node(-1, "program")
    path = [program]
    for line in text.splitlines():
        if found := _LINE.match(line):
            while path[-1].indent >= len(found[1]):
                path.pop()
            node = _Node(len(found[1]), found[2] or "branch")
            path[-1].children.append(node)
            path.append(node)
    loop = next((node for node in program.children if node.kind == "While"), None)
    if loop is None:
        raise LookupError("the list of thunks has no loop")
    return loop.starts()
