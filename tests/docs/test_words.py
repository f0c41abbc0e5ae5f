"""Words that prose should not use: their number per top-level directory can only fall.

Each has a standard term: after and before (behind, in front of), position (place), visibility (sight, seen),
chunk or shard (piece), capacity (room), expensive (dear), reports or returns (tells, told), request (Asked),
benchmark and candidate (contest, contestant), MixerSummary (Card), vmapped runs (lanes), "see" (as of),
whatever else is in the batch (in any company).
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

WORDS = re.compile(
    r"\b(?:behind|in front|places?|sights?|seen|pieces?|rooms?|dear(?:er|est)?|told|tells?|without a word"
    r"|Asked|contest(?:s|ants?)?|Card|lanes?|among their like|as of `|in any company)\b"
)

ALLOWED = {
    r"(?:in|into|takes?(?: the| its| their)?|took|decimal) places?\b": "in place, takes place",
    r"\.place\(": "puts an array on devices",
    r"\btells?\b[^.]*\bapart\b|\bcannot tell\b": "to distinguish",
    r"\.tell\b|\btell: Callable|\btell[,)]|\bdef tell\b|^ *tell\(": "of a file, or prints progress",
    r"['\"]contestants?['\"]|--contestants|\bcontestants: |\.contestants\b": "keys and flags of reports",
    r"\bcontest\.|import contest\b|kernels\.contest\b": "the module",
    r"['\"]lanes['\"]|--lanes|\.lanes\b|\blanes: ": "keys and flags of reports",
    r"['\"]place['\"]": "a key of saved progress, in checkpoints and unfinished bigram counts",
    r"\bpiece: KVCache|\bpiece=init_kv_cache|state\.piece\b": "a leaf of LandmarkState, a key in snapshots",
    r"['\"]behind['\"]|\.behind\b|\bbehind: int|--behind": "a flag of `benchmarks static`",
    r"(?:[Ww]arp|32|128) lanes|\blanes? of (?:a|the) warp": "the GPU's term",
    r"(?:proxy|limits) in front": "a proxy in front of a server",
}
"""Pattern around a word -> its meaning, for which the word stays."""
_ALLOWED = re.compile("|".join(ALLOWED))

LEFT = {"based_jax": 0, "pallas_kernels": 98, "train": 0, "benchmarks": 0, "docs": 86, "README.md": 0}
"""Top-level directory -> upper bound of their number; lower it when you replace some, never raise it."""


def found(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line's number and text for each word outside the allowed patterns."""
    for match in WORDS.finditer(text):
        begin, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
        line = text[begin : end if end >= 0 else None]
        span = match.start() - begin, match.end() - begin
        if not any(a.start() < span[1] and span[0] < a.end() for a in _ALLOWED.finditer(line)):
            yield text.count("\n", 0, begin) + 1, line.strip()


def files(top: str) -> Iterator[Path]:
    path = ROOT / top
    if path.is_file():
        yield path
    for kind in ("*.py", "*.md", "*.html"):
        yield from sorted(path.rglob(kind))


@pytest.mark.parametrize("top", LEFT)
def test_words_to_replace_get_fewer(top: str) -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{n}: {line}" for path in files(top) for n, line in found(path.read_text())
    ]
    listed = "\n".join(hits[:20])
    assert len(hits) <= LEFT[top], f"{len(hits)} words to replace in {top}, such as\n{listed}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("one chunk behind the sum", 1),
        ("a state with room for N tokens", 1),
        ("the place of a token, told by the mask", 2),
        ("the state is updated in place", 0),
        ("decay in place of left; rounded to two decimal places", 0),
        ("placeholder, replaced, mushroom, laneside", 0),
        ("in place\nbehind", 1),
    ],
)
def test_finds_words_in_their_stilted_sense(text: str, count: int) -> None:
    assert len(list(found(text))) == count
