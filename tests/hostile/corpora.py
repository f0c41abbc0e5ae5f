"""Training text: bombs, links, globs, sparse files, deep and broken JSON lines, binary files."""

import functools
import gzip
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import zstandard

from based_jax.data import load_documents
from based_jax.data.labelled import load_labelled
from based_jax.data.tokenizers import load_tokenizer
from tests.hostile.attack import Attack

SECONDS = 30.0
"""a file of a gigabyte that holds nothing is read to its end"""
MEBIBYTES = 400.0
"""text of 64 MiB is believed of any file: its bytes, and as text, and what is split off it"""

_ENDINGS = [
    ".txt",
    ".jsonl",
    ".fa",
    ".md",
    ".csv",
    ".txt.gz",
    ".jsonl.gz",
    ".fa.gz",
    ".txt.zst",
    ".jsonl.zst",
]
_GLOBS = [
    "**",
    "**/*",
    "**/" * 40 + "*.txt",
    "*/*/**/*",
    "*[",
    "[!a]*/**",
    "?" * 50,
    "*" * 200 + "b",
    "loop/**/**",
]


def attacks(rng: np.random.Generator, count: int) -> Iterator[Attack]:
    """Yield `count` attacks: a tree of files each, read as a directory, by a glob, or one file of it."""
    for _ in range(count):
        seed = int(rng.integers(1 << 32))
        yield Attack(f"tree {seed}", functools.partial(_load, seed))


def _load(seed: int) -> None:
    logging.disable(logging.WARNING)  # of what was skipped
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "data"
        real = _tree(root, rng)
        outside = Path(name) / "outside.txt"
        outside.write_text("outside")
        before = sorted(os.listdir(name))
        how = rng.random()
        try:
            if how < 0.15:
                load_labelled(root, load_tokenizer("byte"))
            elif how < 0.25:
                load_tokenizer(real[int(rng.integers(len(real)))])
            else:
                glob = f"{root}/{_GLOBS[int(rng.integers(len(_GLOBS)))]}"
                spec = (
                    str(root) if how < 0.5 else glob if how < 0.8 else str(real[int(rng.integers(len(real)))])
                )
                corpus = load_documents(spec, "*" if rng.random() < 0.3 else None)
                links = len(corpus.skipped)  # a broken link counts as a file that cannot be read
                read = sum(file.is_read for file in corpus.files)
                assert read <= len(real) + links, f"{read} of {len(real)} files"
                assert all(document.text != "outside" for document in corpus.documents)
        finally:
            assert sorted(os.listdir(name)) == before


def _tree(root: Path, rng: np.random.Generator) -> list[Path]:
    """Directories with files of every kind, and links among them; returns the files."""
    directories = [root, root / "train" / "a", root / "b" / "c", root / "test"]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(rng.integers(1, 6)):
        kinds = sorted(_CONTENTS)
        content = _CONTENTS[kinds[int(rng.integers(len(kinds)))]](rng)
        ending = _ENDINGS[int(rng.integers(len(_ENDINGS)))]
        stem = "train" if rng.random() < 0.2 else f"f{number}"
        path = directories[int(rng.integers(len(directories)))] / f"{stem}{ending}"
        path.write_bytes(_pack(content, ending, rng))
        if rng.random() < 0.1:
            os.truncate(path, int(rng.choice([1 << 20, 1 << 30, 1 << 40])))
        files.append(path)
    for number in range(rng.integers(0, 6)):
        target = (directories + files)[int(rng.integers(len(directories) + len(files)))]
        link = directories[int(rng.integers(len(directories)))] / f"loop{number or ''}"
        link = link if target.is_dir() else link.with_suffix(".txt")
        if not link.exists() and not link.is_symlink():
            link.symlink_to(target if rng.random() < 0.9 else root / "nowhere")
    if rng.random() < 0.2:
        os.mkfifo(root / "pipe.txt")
    return sorted(set(files))


def _pack(content: bytes, ending: str, rng: np.random.Generator) -> bytes:
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(ending).suffix)
    packed = pack(content) if pack else content
    if pack and rng.random() < 0.3:
        packed += packed[: int(rng.integers(len(packed)))]
    if rng.random() < 0.1:
        packed = bytes(rng.permutation(np.frombuffer(packed[:1000], np.uint8)))
    return packed


_CONTENTS: dict[str, Callable[[np.random.Generator], bytes]] = {
    "text": lambda rng: b"some text\n" * int(rng.integers(1, 100)),
    "bomb": lambda rng: b"a" * int(2 ** rng.uniform(20, 28)),
    "blank lines": lambda rng: b"\n" * int(2 ** rng.uniform(10, 24)),
    "deep lines": lambda rng: b'{"text": "x"}\n' + b"[" * int(10 ** rng.uniform(1, 6)),
    "deep record": lambda rng: b'{"text":"x","d":' + b"[" * 500 + b"]" * 500 + b"}\n",
    "long numbers": lambda rng: b'{"text":"x","n":' + b"9" * int(10 ** rng.uniform(1, 6)) + b"}\n",
    "lone surrogate": lambda rng: b'{"text":"\\ud800"}\n',
    "empty texts": lambda rng: b'{"text":""}\n' * int(10 ** rng.uniform(0, 5)),
    "a header without an end": lambda rng: b">chr1 " + b"x" * int(2 ** rng.uniform(10, 26)),
    "headers": lambda rng: b">\n" * int(10 ** rng.uniform(0, 5)),
    "gaps": lambda rng: b">c\n" + (b"ACGT" + b"N" * 100) * int(10 ** rng.uniform(0, 4.5)),
    "binary": lambda rng: rng.bytes(int(10 ** rng.uniform(0, 5))),
    "zeros": lambda rng: bytes(int(10 ** rng.uniform(0, 6))),
    "table": lambda rng: b"sequence,label\n" + b"A" * int(10 ** rng.uniform(0, 6)) + b",1\nC,2\n",
    "quotes": lambda rng: b'sequence,label\n"' * int(10 ** rng.uniform(0, 4)),
    "empty": lambda rng: b"",
}
