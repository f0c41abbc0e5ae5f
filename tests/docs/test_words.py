"""Words that prose should not use.

Each has a standard term: after and before (behind, in front of), position (place), visibility (sight, seen),
chunk or shard (piece), capacity (room), expensive (dear), reports or returns (tells, told), request (Asked),
benchmark and candidate (contest, contestant), vmapped runs (lanes), "see" (as of),
whatever else is in the batch (in any company).
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.floors import ROOT

WORDS = re.compile(
    r"\b(?:behind|in front|places?|sights?|seen|pieces?|rooms?|dear(?:er|est)?|told|tells?|without a word"
    r"|Asked|contest(?:s|ants?)?|Card|lanes?|among their like|as of `|in any company)\b"
)

ALLOWED = {
    r"(?:in|into|takes?(?: the| its| their)?|took|decimal) places?\b": "in place, takes place",
    r"\btells?\b[^.]*\bapart\b|\bcannot tell\b": "to distinguish",
    r"\.tell\b": "of a file",
    r"\"place\"": "a key of saved progress: of the loader, and of an unfinished count of bigrams",
    r"\bpiece: KVCache|\bpiece=init_kv_cache|state\.piece\b": "a leaf of LandmarkState, a key in snapshots",
}
"""Pattern around a word -> its meaning, for which the word stays."""
_ALLOWED = re.compile("|".join(ALLOWED))

TOPS = ("based_jax", "pallas_kernels", "train", "benchmarks", "docs", "papers", "README.md")


def found(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line's number and text for each word outside the allowed patterns."""
    for number, line in enumerate(text.split("\n"), 1):
        for word in WORDS.finditer(line):
            if not allows(_ALLOWED, line, word):
                yield number, line.strip()


def allows(pattern: re.Pattern[str], line: str, word: re.Match[str]) -> bool:
    """Return whether the pattern matches at a word of the line."""
    return any(a.start() < word.end() and word.start() < a.end() for a in pattern.finditer(line))


def files(top: str) -> Iterator[Path]:
    path = ROOT / top
    if path.is_file():
        yield path
    for kind in ("*.py", "*.md", "*.html"):
        yield from sorted(path.rglob(kind))


@pytest.mark.parametrize("top", TOPS)
def test_no_word_is_to_be_replaced(top: str) -> None:
    assert [
        f"{path.relative_to(ROOT)}:{n}: {line}" for path in files(top) for n, line in found(path.read_text())
    ] == []
