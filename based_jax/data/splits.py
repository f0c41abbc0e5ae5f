"""Split off held-out documents without leaks: the split of a document depends only on its text.

A document is held out if the SHA-256 of its text, read as a number in [0, 1), is below the fraction. So exact
copies are always in the same split, and neither the order of the documents nor other files matter. To hold
out whole files or records (such as a chromosome), name them instead.

Token shards (`choose`) differ from text in memory (`split_documents`): with a limit in bytes, the held-out
split has the texts with the smallest hashes that fit together. All others below the fraction are used for
training, after the rest, as is a text that alone exceeds the limit. No document is cut, the held-out split
may be empty and is in the order of the sources, and names cannot be combined with a limit.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from based_jax.data.documents import Document
from based_jax.validate import expect

COPY = "copy of a held-out document"
"""Reason to leave a document out of token shards."""

_LOGGER = logging.getLogger(__name__)


def split_documents(
    documents: Sequence[Document],
    *,
    fraction: float = 0.05,
    max_bytes: int | None = None,
    held_out_names: str | None = None,
) -> tuple[list[Document], list[Document]]:
    """Split documents into a training and a held-out list without a text in common.

    The training list keeps the given order, and copies. The held-out list has every text once, in the order
    of the hashes. With `max_bytes` it takes the documents that still fit, in that order; those that do not
    fit are unused. Only if none fits, the first one is cut.

    If this would leave a list empty (few documents, or one), every document is cut instead: its last
    `fraction` is held out, the rest is used for training; the parts are ``NAME (head)`` and ``NAME (tail)``.

    With `held_out_names`, documents are held out if one of the names is a component of their own name between
    colons (a file, a FASTA record, a line number). With `max_bytes`, each contributes a part from its middle
    in proportion to its length.

    Args:
        fraction: expected fraction of the documents to hold out; not used with `held_out_names`.
        max_bytes: limit of the held-out UTF-8 bytes; None for no limit.
        held_out_names: names to hold out, separated by commas, e.g. "chr8,chr9".

    Raises:
        ValueError: a value out of range, a name that no document has, or so little text that no such split
            exists.
    """
    expect(0 < fraction < 1, "fraction", fraction, "more than 0 and less than 1")
    expect(max_bytes is None or max_bytes >= 4, "max_bytes", max_bytes, "None or at least 4, one character")
    documents = [document for document in documents if document.text]
    if held_out_names:
        train, held_out = _by_name(documents, held_out_names.split(","))
    else:
        sides: tuple[list[Document], list[Document]] = [], []
        for document in documents:
            sides[bool(position(document.text) < fraction)].append(document)
        train, held_out = sides
        if not train or not held_out:
            train, held_out = _cut_tails(documents, fraction)
            message = "%d documents are too few to hold out whole ones: held out their tails"
            _LOGGER.info(message, len(documents))
    train_texts = {document.text for document in train}
    held_out = _distinct(held_out, train_texts)
    held_out = _middles(held_out, max_bytes) if held_out_names else _within(held_out, train_texts, max_bytes)
    characters = sum(len(document.text) for document in documents)
    found = f"{len(documents)} with {characters} characters"
    expected = "enough text for a training and a held-out side that differ"
    expect(bool(train and held_out), "documents", found, expected)
    return train, held_out


def position(text: str) -> float:
    """Return the text's position in [0, 1), which determines its split."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return float(positions(np.frombuffer(digest, np.uint8)[None])[0])


def choose(
    digests: UInt8[np.ndarray, "n 32"], sizes: Int64[np.ndarray, " n"], max_bytes: int | None
) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Choose among the documents below the fraction, by the SHA-256 and the bytes of their texts.

    Returns:
        the documents to hold out, and the copies of them, which are in neither split.
    """
    texts = np.ascontiguousarray(digests).view("V32")[:, 0]
    # In the order of the hashes.
    _, firsts, inverse = np.unique(texts, return_index=True, return_inverse=True)
    fits = np.ones(len(firsts), bool)
    if max_bytes is not None:
        fits = sizes[firsts] <= max_bytes
        fits[fits] = np.cumsum(sizes[firsts][fits]) <= max_bytes
    chosen = fits[inverse]
    is_first = np.zeros(len(texts), bool)
    is_first[firsts] = True
    return chosen & is_first, chosen & ~is_first


def positions(digests: UInt8[np.ndarray, "n 32"]) -> np.ndarray:
    """Return the positions in [0, 1) of texts with these hashes, float64 (n,); see `position`."""
    first = np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return (first >> np.uint64(11)) / float(1 << 53)  # 53 bits: the quotient is exact and below 1


def _by_name(documents: Iterable[Document], names: Sequence[str]) -> tuple[list[Document], list[Document]]:
    """Return the documents without and with one of `names`."""
    wanted, found = set(names), set()
    train, held_out = [], []
    for document in documents:
        own = wanted & set(document.name.split(":"))
        found |= own
        (held_out if own else train).append(document)
    missing = ", ".join(sorted(wanted - found))
    expected = "files or records of the data, as they stand between colons there"
    expect(not missing, "held_out_names", missing, expected)
    return train, held_out


def _middles(documents: list[Document], max_bytes: int | None) -> list[Document]:
    """Return a nonempty part from the middle of every document, in proportion to its length."""
    sizes = [len(document.text.encode("utf-8")) for document in documents]
    total = sum(sizes)
    if max_bytes is None or total <= max_bytes:
        return documents
    middles = []
    for document, size in zip(documents, sizes, strict=True):
        share = size * max_bytes // total
        first = (size - share) // 2
        # Ignoring undecodable bytes drops at most the two characters that were cut through.
        text = document.text.encode("utf-8")[first : first + share].decode("utf-8", errors="ignore")
        if text:
            middles.append(replace(document, name=f"{document.name} (middle)", text=text))
    return middles


def _cut_tails(documents: Iterable[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    """Cut documents into heads and tails, copies at the same position; a single character is a head."""
    heads, tails = [], []
    for document in documents:
        length = len(document.text)
        cut = length - min(max(1, round(length * fraction)), length - 1)
        heads.append(replace(document, name=f"{document.name} (head)", text=document.text[:cut]))
        if cut < length:
            tails.append(replace(document, name=f"{document.name} (tail)", text=document.text[cut:]))
    return heads, tails


def _distinct(documents: Iterable[Document], excluded: set[str]) -> list[Document]:
    """Return every text once, without those in `excluded`, in the order of the hashes."""
    by_text: dict[str, Document] = {}
    for document in documents:
        if document.text not in excluded:
            # Take the smallest of several names for one text, so that the documents' order does not matter.
            known = by_text.setdefault(document.text, document)
            by_text[document.text] = min(known, document, key=lambda copy: copy.name)
    return sorted(by_text.values(), key=lambda document: (position(document.text), document.text))


def _within(documents: list[Document], excluded: set[str], max_bytes: int | None) -> list[Document]:
    """Return the documents that fit, in order; if none does, the first one, cut."""
    if max_bytes is None:
        return documents
    chosen, capacity = [], max_bytes
    for document in documents:
        size = len(document.text.encode("utf-8"))
        if size <= capacity:
            chosen.append(document)
            capacity -= size
    if chosen:
        return chosen
    for document in documents:
        # Ignoring undecodable bytes drops at most the one character that was cut through.
        text = document.text.encode("utf-8")[:max_bytes].decode("utf-8", errors="ignore")
        while text in excluded:
            text = text[:-1]
        if text:
            return [replace(document, name=f"{document.name} (cut)", text=text)]
    return []
