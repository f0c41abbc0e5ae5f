"""Read disassembled machine code of a kernel: the instructions of its main loop."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Loop:
    """The instructions between the label and the branch back of one loop."""

    instructions: int
    """per warp and iteration"""
    issue_slots: int
    """cycles to issue one iteration for all warps of a program, on the four schedulers of a multiprocessor"""
    tensor_cycles: int
    """cycles that the tensor cores need for one iteration of a program"""
    local: int
    """loads from and stores to local memory (spilled registers), per warp and iteration"""
    barriers: int
    """waits for all warps of the program"""


def main_loop(text: str, warps: int) -> Loop | None:
    """Return the loop with the most tensor-core work in `nvdisasm -c` output, or the longest, or None."""
    addresses, instructions, labels = _parse(text)
    loops = []
    for index, instruction in enumerate(instructions):
        branch = re.search(r"\bBRA\b.*`\((\.L\S+?)\)", instruction)
        start = labels.get(branch[1]) if branch else None
        if start is not None and start < addresses[index]:
            loops.append(instructions[addresses.index(start) : index + 1])
    if not loops:
        return None
    # Of nested loops with the same tensor-core work the inner one is the short one.
    weighed = [(_tensor_cycles(loop), loop) for loop in loops]
    _, body = max(weighed, key=lambda pair: (pair[0], -len(pair[1]) if pair[0] else len(pair[1])))
    local, barriers = (_count(pattern, body) for pattern in (r"\b(LDL|STL)\b", r"\bBAR\.SYNC\b"))
    tensor_cycles = round(_tensor_cycles(body) * warps / 4)
    return Loop(len(body), len(body) * warps // 4, tensor_cycles, local, barriers)


def _parse(text: str) -> tuple[list[int], list[str], dict[str, int]]:
    """Return addresses and instructions in order, and label -> address."""
    addresses: list[int] = []
    instructions: list[str] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L\S+):", line):
            pending.append(label[1])
        elif found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            addresses.append(int(found[1], 16))
            instructions.append(found[2])
            labels.update(dict.fromkeys(pending, addresses[-1]))
            pending = []
    return addresses, instructions, labels


def _tensor_cycles(body: list[str]) -> float:
    """Count per warp group: 64 x n x 16 products take n/2 cycles, 16 x 8 x 16 ones of each of its warps 4."""
    widths = re.findall(r"\bHGMMA\.\d+x(\d+)x\d+", "\n".join(body))
    return sum(int(n) / 2 for n in widths) + 4 * _count(r"\bHMMA\.16816\b", body)


def _count(pattern: str, body: list[str]) -> int:
    return sum(bool(re.search(pattern, instruction)) for instruction in body)
