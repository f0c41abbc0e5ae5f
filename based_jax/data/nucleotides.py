"""Encode DNA in the alphabet A C G T, and N for an unknown base.

Lower case is read as upper case: in genome assemblies it marks repeats, not other bases. U is read as T. The
other IUPAC codes stand for two or three bases (R is A or G, ...) and become N. The character tokenizer of
HyenaDNA's code (arXiv:2306.15794) has the same five letters, but maps lower case to unknown.
"""

import re

import numpy as np
from jaxtyping import UInt8

from based_jax.validate import expect

LETTERS = "ACGTN"  # for ids 0, 1, ..., 4

AMBIGUOUS = "RYSWKMBDHV"  # IUPAC's codes for several bases, read as N

_UNKNOWN = 255
_TO_ID = bytearray([_UNKNOWN] * 256)
for _letter in (*LETTERS, *AMBIGUOUS, "U"):
    _id = LETTERS.index({"U": "T"}.get(_letter, _letter if _letter in LETTERS else "N"))
    _TO_ID[ord(_letter)] = _TO_ID[ord(_letter.lower())] = _id
_OTHER = re.compile(f"[^{LETTERS}U{AMBIGUOUS}]", re.IGNORECASE | re.ASCII)


def encode_nucleotides(text: str) -> UInt8[np.ndarray, " N"]:
    """Return ids of nucleotides, uint8 (N,); ValueError names an unknown character and its position."""
    # `translate` runs over the bytes in C; a non-ASCII character becomes "?", which is unknown as well.
    ids = np.frombuffer(text.encode("ascii", errors="replace").translate(_TO_ID), dtype=np.uint8)
    if ids.size and ids.max() == _UNKNOWN:
        other = _OTHER.search(text)
        assert other is not None
        expected = "a nucleotide: A C G T U N or another of IUPAC's codes, in upper or lower case"
        expect(False, f"character {other.start():,} of a sequence", other.group(), expected)
    return ids


def decode_nucleotides(ids: np.ndarray) -> str:
    """Return the letters of ids 0 to 4, integers (N,); other ids have no letter and are skipped."""
    letters = np.frombuffer(LETTERS.encode("ascii"), dtype=np.uint8)
    return letters[ids[ids < len(LETTERS)]].tobytes().decode("ascii")
