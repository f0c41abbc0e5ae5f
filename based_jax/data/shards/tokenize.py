"""Tokenize sources into a directory of token shards, resuming an interrupted call.

``report.jsonl`` beside the shards reports about every file (see `based_jax.data.documents`).
"""

import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from based_jax.data.documents import REPORT, FileReport, describe_counts, read_report
from based_jax.data.readers import ReadOptions
from based_jax.data.shards.blocks import (
    Block,
    BlockEncoder,
    Encoded,
    Position,
    Sources,
    encode_blocks,
    read_blocks,
)
from based_jax.data.shards.manifest import (
    FILE,
    MAX_BYTES,
    SPLITS,
    HeldOutRule,
    Manifest,
    Split,
    TokenizerRecord,
    token_dtype,
)
from based_jax.data.shards.writer import ShardWriter
from based_jax.data.splits import COPY, choose, positions
from based_jax.data.tokenizers import Tokenizer, saved_bytes
from based_jax.directory_lock import sole_writer
from based_jax.files import naming, read_json, whole_file, write_json
from based_jax.validate import expect

JOURNAL = "progress.json"
SHARD_TOKENS = 64 << 20
_TOKENIZER = "tokenizer.json"
_SPOOL = "held_out.spool"  # tokens of the documents that may be held out
_INDEX = "held_out.index"
_TRAIN = "train.hashes"  # with names: hashes of all training texts, to find copies of held-out ones
_ENTRY = np.dtype([("digest", "u1", 32), ("length", "<i8"), ("size", "<i8")])
_SETTINGS = ("tokenizer", "held_out", "shard_tokens", "text_field", "encoding")  # of a manifest
_SAVE_EVERY = 10.0  # seconds


class Progress(NamedTuple):
    """Progress of the tokenization."""

    done: int  # bytes of the sources, as on disk
    total: int
    tokens: int


def tokenize(
    sources: Sources,
    tokenizer: Tokenizer,
    out: Path,
    *,
    workers: int,
    rule: HeldOutRule,
    options: ReadOptions = ReadOptions(),  # noqa: B008
    shard_tokens: int = SHARD_TOKENS,
    progress: Callable[[Progress], bool] = lambda now: True,
) -> Manifest | None:
    """Write the sources' shards to `out` and return their manifest; None if `progress` returned False.

    The same arguments give the same bytes, whatever the number of workers and of interruptions. After a kill
    the work of the last ten seconds is repeated.

    Raises:
        ValueError: `out` holds another tokenization, the sources have changed, or there is no document.
        DirectoryInUse: another process writes to `out`.
    """
    expect(shard_tokens >= 2, "shard_tokens", shard_tokens, "at least 2")
    together = rule.names is None or rule.max_bytes is None
    expected = "none with held_out_names, which hold out whole documents"
    expect(together, "held_out_bytes", rule.max_bytes, expected)
    content = saved_bytes(tokenizer)
    sha256 = hashlib.sha256(content).hexdigest()
    record = TokenizerRecord(tokenizer.name, tokenizer.vocab_size, tokenizer.eot, sha256)
    dtype = token_dtype(tokenizer.vocab_size).name
    splits = {name: Split.of(()) for name in SPLITS}
    reading = options.text_field, options.codec
    plan = Manifest(record, dtype, sources.records, rule, shard_tokens, {}, splits, *reading)
    with sole_writer(out), naming(out):
        if (out / FILE).exists():
            manifest = Manifest.read(out)
            _expect_same(out, manifest.to_dict(), plan.to_dict())
            _clean(out)
            return manifest
        state, size = _begin(out, plan, content), sum(file.size for file in sources.files)
        with contextlib.closing(_Run(out, sources, plan, state)) as run:
            names = rule.names.split(",") if rule.names else []
            blocks = read_blocks(sources.files, run.position, options)
            for block, encoded in encode_blocks(blocks, BlockEncoder(tokenizer, names), workers):
                run.take(block, encoded)
                if not progress(Progress(block.done, size, run.tokens)):
                    run.save()
                    return None
                if time.monotonic() - run.saved >= _SAVE_EVERY:
                    run.save()
            run.save()
            return run.finish(names)


class _Run:
    """State of a tokenization in progress; `plan` is its manifest, without documents."""

    def __init__(self, out: Path, sources: Sources, plan: Manifest, state: dict[str, Any]) -> None:
        self._out, self._sources, self._plan, self._rule = out, sources, plan, plan.held_out
        self._dtype = np.dtype(plan.dtype)
        self.position = Position(*state["position"])
        self.tokens, self.documents = state["tokens"], state["documents"]
        self._skipped, self._names = Counter(state["skipped"]), set(state["names"])
        self._reports = {int(index): FileReport(**own) for index, own in state["reports"].items()}
        self._train, self._files = self._writer("train", state["train"]), {}
        for name in (_SPOOL, _INDEX, _TRAIN, REPORT):
            (out / name).touch()
            file = (out / name).open("r+b")
            file.truncate(state["files"].get(name, 0))
            file.seek(0, os.SEEK_END)
            self._files[name] = file
        self.saved = time.monotonic()

    def close(self) -> None:
        self._train.abandon()
        for file in self._files.values():
            file.close()

    def _writer(self, split: str, state: dict[str, Any] | None = None) -> ShardWriter:
        eot, shard_tokens = self._plan.tokenizer.eot, self._plan.shard_tokens
        return ShardWriter(self._out, split, self._dtype, eot, shard_tokens, state)

    def _report(self, index: int) -> FileReport:
        return self._reports.setdefault(index, self._sources.files[index].report())

    def take(self, block: Block, encoded: Encoded) -> None:
        """Write an encoded block, and report about the files that end in it."""
        self._write(encoded)
        for index, item in encoded.skipped:
            self._skipped[item.reason] += 1
            self._report(index).skip(item)
        for index in np.unique(encoded.files).tolist():
            own = encoded.files == index
            self._report(index).count(int(own.sum()), int(encoded.sizes[own].sum()))
        for index in range(self.position.file, block.end.file):
            ended = self._report(index)
            self._skipped.update(item.reason for item in ended.end())
            self._files[REPORT].write(ended.line().encode())
            del self._reports[index]
        self.position = block.end

    def _write(self, encoded: Encoded) -> None:
        self._names.update(encoded.names)
        self.tokens += encoded.tokens.size
        self.documents += len(encoded.lengths)
        held_out = encoded.named if self._rule.names else positions(encoded.digests) < self._rule.fraction
        is_spooled, train = np.repeat(held_out, encoded.lengths), ~held_out
        entries = np.zeros(int(held_out.sum()), _ENTRY)
        for name, column in (("digest", "digests"), ("length", "lengths"), ("size", "sizes")):
            entries[name] = getattr(encoded, column)[held_out]
        self._files[_SPOOL].write(encoded.tokens[is_spooled].tobytes())
        self._files[_INDEX].write(entries.tobytes())
        self._train.append(encoded.tokens[~is_spooled], encoded.lengths[train], encoded.sizes[train])
        if self._rule.names:
            self._files[_TRAIN].write(encoded.digests[train, 8:16].tobytes())

    def save(self) -> None:
        """Write the journal, from which `tokenize` resumes."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        state = {
            "position": self.position,
            "tokens": self.tokens,
            "documents": self.documents,
            "skipped": self._skipped,
            "names": sorted(self._names),
            "reports": {index: asdict(own) for index, own in self._reports.items()},
            "train": self._train.sync(),
            "files": {name: file.tell() for name, file in self._files.items()},
        }
        _write_journal(self._out, self._plan, state)
        self.saved = time.monotonic()

    def finish(self, names: Sequence[str]) -> Manifest:
        """Write the held-out split and the manifest."""
        missing = ", ".join(sorted({*names} - self._names))
        expected = "names of the data, as they stand between colons there"
        expect(not missing, "held_out_names", missing, expected)
        entries = np.fromfile(self._out / _INDEX, _ENTRY)
        held_out, copies = choose(entries["digest"], entries["size"], self._rule.max_bytes)
        self._skipped[COPY] += int(copies.sum())
        if names:
            hashes = np.ascontiguousarray(entries["digest"][:, 8:16]).view("<u8")[:, 0]
            trained_on = held_out & np.isin(hashes, np.fromfile(self._out / _TRAIN, "<u8"))
            self._skipped["copy of a training document"] += int(trained_on.sum())
            held_out, copies = held_out & ~trained_on, copies | trained_on
        writer = self._writer("held_out")
        with (self._out / _SPOOL).open("rb") as spool:
            for entry, is_held_out, is_copy in zip(entries, held_out, copies, strict=True):
                stream = np.frombuffer(spool.read(int(entry["length"]) * self._dtype.itemsize), self._dtype)
                if not is_copy:
                    split = writer if is_held_out else self._train
                    split.append(stream, np.asarray([entry["length"]]), np.asarray([entry["size"]]))
        self._train.close()
        writer.close()
        self._files[REPORT].writelines(other.line().encode() for other in self._sources.others)
        self._files[REPORT].flush()
        found = f"{self.documents} documents, skipped {describe_counts(self._skipped) or 'nothing'}"
        messages = (own.message for own in read_report(self._out / REPORT))
        problem = next((f"; {message}" for message in messages if message), "")
        expect(bool(self._train.shards), "data", found, f"at least one training document with text{problem}")
        skipped = dict(sorted((+self._skipped).items()))
        splits = {"train": Split.of(self._train.shards), "held_out": Split.of(writer.shards)}
        manifest = replace(self._plan, skipped=skipped, splits=splits)
        manifest.write(self._out)
        _clean(self._out)
        return manifest


def _begin(out: Path, plan: Manifest, content: bytes) -> dict[str, Any]:
    """Return the state to resume from, that of the journal or the initial state; write the tokenizer."""
    counts = {"tokens": 0, "documents": 0, "skipped": {}, "names": [], "reports": {}}
    state = {"position": (0, 0, 0), **counts, "train": None, "files": {}}
    if (path := out / JOURNAL).exists():
        match read_json(path, max_bytes=MAX_BYTES):
            case {"sha256": digest, **journal} if digest == _digest(journal):
                settings = json.loads(json.dumps(plan.to_dict()))  # as they were read
                if journal["state"]["documents"] or journal["settings"] == settings:
                    _expect_same(out, journal["settings"], settings)
                    state = journal["state"]  # else nothing was found with other settings
            case _:
                expected = "expected the progress of this command, undamaged; start again in a new directory"
                raise ValueError(f"{path}: {expected}")
    else:
        names = [path.name for path in out.iterdir()]
        others = [name for name in names if name != "run.lock" and not name.startswith(".")]
        expect(not others, "out", str(out), "an empty or new directory, or one that this command began")
        _write_journal(out, plan, state)
    with whole_file(out / _TOKENIZER) as file:
        file.write(content)
    return state


def _write_journal(out: Path, plan: Manifest, state: dict[str, Any]) -> None:
    journal = json.loads(json.dumps({"settings": plan.to_dict(), "state": state}))  # as it will be read
    write_json(out / JOURNAL, {"sha256": _digest(journal), **journal})


def _digest(journal: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(journal, sort_keys=True).encode()).hexdigest()


def _expect_same(out: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    old, new = before["sources"], now["sources"]
    settings = {name: (now[name], before.get(name)) for name in _SETTINGS}
    settings["data"] = [source["spec"] for source in new], [source["spec"] for source in old]
    for name, (value, begun) in settings.items():
        expect(begun == value, name, value, f"{begun!r}, as {out} was begun with, or another directory")
    for source, was in zip(new, old, strict=True):
        value, begun = source["include"], was["include"]
        expect(begun == value, "include", value, f"{begun!r}, as {out} was begun with, or another directory")
        expected = f"the files as they were when {out} was begun, or another directory"
        expect(source == was, "data", source["spec"], expected)


def _clean(out: Path) -> None:
    for name in (_SPOOL, _INDEX, _TRAIN, JOURNAL):
        (out / name).unlink(missing_ok=True)
