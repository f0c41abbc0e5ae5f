"""`tokenize`: measure speed and memory of ``train tokenize``, compared with the tokenizers library alone."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from based_jax.data.shards.manifest import Manifest
from based_jax.validate import expect
from benchmarks import report, tables
from benchmarks.data.tokenize_corpus import Corpus, batched
from benchmarks.data.tokenize_run import Library, tokenize
from benchmarks.flags import expect_writable
from benchmarks.machine import cores
from benchmarks.tables import MISSING

GB = 10**9
_LIBRARY_BYTES = 32 << 20  # of text that the library alone encodes repeatedly


@dataclass(frozen=True)
class Tokenize:
    """Tokenize a synthetic corpus in several formats; compare with the tokenizers library alone.

    The documents are random lines of Python's standard library; a byte-level BPE tokenizer is trained on
    them. The run is paused from time to time to measure the library alone on text in memory on all cores, so
    that noise of the machine affects both.
    """

    gigabytes: float = 2.0
    """Text of the corpus, 10^9 bytes before compression."""
    vocab_size: int = 50_257
    """Tokens of the tokenizer."""
    workers: int | None = None
    """Documents to encode at the same time; default: one for each core."""
    every: float = 30.0
    """Pause the run after so many seconds."""
    seconds: float = 5.0
    """Length of a measurement of the library alone, in seconds."""
    scratch: Path | None = None
    """Directory for the files, which are removed afterwards; default: the system's for temporary files."""
    json: Path | None = None
    """Write every number here, with the facts about the machine."""
    markdown: Path | None = None
    """Put the table into this file, between the lines `<!-- tokenize -->` and `<!-- /tokenize -->`."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value.
            OSError: the corpus cannot be written.
        """
        self._check()
        workers = self.workers or cores()
        names = ("gigabytes", "vocab_size", "every", "seconds")
        settings = {name: getattr(self, name) for name in names} | {"workers": workers}
        files = report.Files(json=self.json, markdown=self.markdown)
        results = report.new_report("tokenize", command, settings, [], [])
        report.note_load(results)
        return report.make(results, lambda: self._measure(results), "Tokenizing", text, files)

    def _measure(self, results: dict[str, Any]) -> bool:
        with tempfile.TemporaryDirectory(dir=self.scratch, prefix="tokenize-") as folder:
            results["rows"].append(self._row(Path(folder), results["settings"]["workers"]))
        return True

    def _row(self, folder: Path, workers: int) -> dict[str, Any]:
        corpus = Corpus()
        report.say("training the tokenizer")
        corpus.train_tokenizer(folder / "bpe.json", self.vocab_size)
        library = Library(folder / "bpe.json", list(batched(corpus.documents(_LIBRARY_BYTES))))
        report.say(f"writing {self.gigabytes:g} GB of text to {folder}")
        files = corpus.write(folder / "corpus", int(self.gigabytes * GB))
        report.say(f"tokenizing {len(files)} files")
        out = folder / "shards"
        arguments = ["--data", *map(str, files), "--tokenizer", str(folder / "bpe.json"), "--out", str(out)]
        arguments += ["--held-out", "0.0005", "--workers", str(workers)]
        run = tokenize(arguments, library, self.every, self.seconds)
        splits = Manifest.read(out).splits.values()
        tokens = sum(split.tokens for split in splits)
        low, median, high = (float(rate) for rate in np.percentile(run.alone, (25, 50, 75)))
        return {
            "files": len(files),
            "file_bytes": sum(path.stat().st_size for path in files),
            "text_bytes": sum(split.bytes for split in splits),
            "shard_bytes": sum(path.stat().st_size for path in out.rglob("*.npy")),
            "documents": sum(split.documents for split in splits),
            "tokens": tokens,
            "seconds": run.seconds,
            "tokens_per_second": tokens / run.seconds,
            "library_tokens_per_second": median,
            "library_spread": (high - low) / median,
            "library_stretches": len(run.alone),
            "peak_mib": run.peak_mib,
        }

    def _check(self) -> None:
        expect(self.gigabytes >= 0.001, "--gigabytes", self.gigabytes, "at least 0.001")
        expect(self.vocab_size >= 257, "--vocab-size", self.vocab_size, "at least 257")
        expect(self.workers is None or self.workers >= 1, "--workers", self.workers, "at least 1")
        for name in ("every", "seconds"):
            value = getattr(self, name)
            expect(0 < value < float("inf"), f"--{name}", value, "more than 0 seconds")
        expect_writable("--json", self.json)
        if self.markdown:
            tables.insert(self.markdown.read_text(), "tokenize", None)


_COLUMNS = (
    "text, GB",
    "files, GB",
    "shards, GB",
    "documents",
    "time, min",
    "million tokens/s",
    "library alone",
    "ratio",
    "peak memory, MiB",
)


def text(report: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    facts = f"{tables.ran_on(report)}, --workers {report['settings']['workers']}:"
    return tables.blocks(facts, tables.table(_COLUMNS, map(_cells, report["rows"]), left=0))


def _cells(row: dict[str, Any]) -> list[str]:
    rate, library, peak = row["tokens_per_second"], row["library_tokens_per_second"], row["peak_mib"]
    return [
        *(f"{row[name] / 1e9:.2f}" for name in ("text_bytes", "file_bytes", "shard_bytes")),
        f"{row['documents']:,}",
        f"{row['seconds'] / 60:.1f}",
        f"{rate / 1e6:.2f}",
        f"{library / 1e6:.2f} (± {row['library_spread']:.0%})",
        f"{rate / library:.2f}",
        MISSING if peak is None else f"{peak:,.0f}",
    ]
