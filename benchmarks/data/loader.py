"""`loader`: measure tokens per second of the training data, in memory or shards, and training from shards."""

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from based_jax.data import PackedTokens, train_iterator
from based_jax.data.packed import TokenStream
from based_jax.data.shards.reader import TokenShards
from based_jax.validate import expect
from benchmarks import report, tables
from benchmarks.data.loader_run import tokens_per_second, train, write_random_shards
from benchmarks.flags import comma_list, expect_writable
from benchmarks.tables import MISSING, significant

GB = 10**9


@dataclass(frozen=True)
class Loader:
    """Rate of the data loader on random 16-bit tokens; start, memory and rate of `train lm`.

    The loader alone draws batches from one shard in memory and from shards in the page cache. Then
    `based-jax train lm --preset based-tiny` runs on shards of each size, in its own process, with its
    programs already compiled.
    """

    length: int = 2048
    """Tokens per row of the loader alone; the runs have the preset's own."""
    batch_size: int = 16
    """Rows per batch."""
    gigabytes: Annotated[tuple[float, ...], comma_list(float, "GB,GB,...")] = (0.01, 1.0, 10.0)
    """Sizes of the tokens on disk, 10^9 bytes; the loader alone reads the first that is not below 1."""
    steps: int = 30
    """Steps of each run."""
    samples: int = 5
    """Number of measurements; the table shows the median rate."""
    seconds: float = 2.0
    """Length of a measurement, in seconds."""
    scratch: Path | None = None
    """Directory for the shards, which are removed afterwards; default: the system's for temporary files."""
    json: Path | None = None
    """Write every number here, with the facts about the machine."""
    markdown: Path | None = None
    """Put the tables into this file, between the lines `<!-- loader -->` and `<!-- /loader -->`."""

    def run(self, command: str) -> int:
        """Measure, print and write; return 0, or 130 after Ctrl-C.

        Raises:
            ValueError: a flag has a wrong value.
            OSError: the shards cannot be written.
        """
        self._check()
        names = ("length", "batch_size", "gigabytes", "steps", "samples", "seconds")
        settings = {name: getattr(self, name) for name in names}
        files = report.Files(json=self.json, markdown=self.markdown)
        results = report.new_report("loader", command, settings, [], [])
        report.note_load(results)
        return report.make(results, lambda: self._measure(results), "Data loader", text, files)

    def _measure(self, results: dict[str, Any]) -> bool:
        with tempfile.TemporaryDirectory(dir=self.scratch, prefix="loader-") as folder:
            report.say("compiling, and keeping the programs")
            write_random_shards(Path(folder), int(self.gigabytes[0] * GB))
            train(Path(folder), Path(folder, "run"), self.steps)
        alone = next((size for size in self.gigabytes if size >= 1), self.gigabytes[-1])
        for size in self.gigabytes:
            with tempfile.TemporaryDirectory(dir=self.scratch, prefix="loader-") as folder:
                directory = Path(folder)
                report.say(f"writing {size:g} GB of shards to {directory}")
                write_random_shards(directory, int(size * GB))
                if size == alone:
                    self._measure_alone(directory, results)
                report.say(f"training on {size:g} GB")
                found = train(directory, directory / "run", self.steps)
                results["rows"].append({"kind": "run", "gigabytes": size, **found})
        return True

    def _measure_alone(self, directory: Path, results: dict[str, Any]) -> None:
        shards = TokenShards.open(directory)
        first = shards.shard(0)
        in_memory = PackedTokens(np.array(first.tokens), np.array(first.starts), first.num_bytes)
        streams: dict[str, TokenStream] = {"memory": in_memory, "shards": shards}
        for source, stream in streams.items():
            for cross_documents in (False, True):
                sizes = {"length": self.length, "batch_size": self.batch_size, "seed": 0}
                batches = train_iterator(stream, **sizes, cross_documents=cross_documents)
                tokens_per_second(batches, self.seconds)  # reads the shards for the first time
                rates = [tokens_per_second(batches, self.seconds) for _ in range(self.samples)]
                batches.close()
                low, median, high = (float(rate) for rate in np.percentile(rates, (25, 50, 75)))
                row = {"kind": "loader", "source": source, "cross_documents": cross_documents}
                spread = {"tokens_per_second": median, "spread": (high - low) / median}
                results["rows"].append(row | spread)
                report.say(f"{source}: {median / 1e6:.3g} million tokens/s")

    def _check(self) -> None:
        for name in ("length", "batch_size", "steps", "samples"):
            value = getattr(self, name)
            expect(value >= 1, f"--{name.replace('_', '-')}", value, "at least 1")
        expect(0 < self.seconds < math.inf, "--seconds", self.seconds, "more than 0 seconds")
        sizes = self.gigabytes
        large = bool(sizes) and all(2 * (self.length + 2) <= size * GB < math.inf for size in sizes)
        expect(large, "--gigabytes", ",".join(map(str, sizes)), "one or more sizes above that of a window")
        expect_writable("--json", self.json)
        if self.markdown:
            tables.insert(self.markdown.read_text(), "loader", None)


_ALONE = ("tokens from", "segment ids", "million tokens/s", "±")
_RUNS = (
    "tokens, GB",
    "first step, s",
    "own memory, MiB",
    "beyond the least, MiB",
    "mapped, MiB",
    "tokens/s",
)


def text(report: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    settings, rows = report["settings"], report["rows"]
    runs = [row for row in rows if row["kind"] == "run"]
    least = min((row["anonymous_mib"] or 0 for row in runs), default=0)
    batch = f"{settings['batch_size']} x {settings['length']:,} tokens"
    return tables.blocks(
        f"The loader alone, batches of {batch}; {tables.ran_on(report)}:",
        tables.table(_ALONE, (_loader_cells(row) for row in rows if row["kind"] == "loader"), left=2),
        f"`train lm --preset based-tiny` on shards, {settings['steps']} steps:",
        tables.table(_RUNS, (_run_cells(row, least) for row in runs), left=0),
    )


def _loader_cells(row: dict[str, Any]) -> list[str]:
    segments = "no" if row["cross_documents"] else "yes"
    rate = significant(row["tokens_per_second"] / 1e6)
    return [row["source"], segments, rate, f"{row['spread']:.0%}"]


def _run_cells(row: dict[str, Any], least: int) -> list[str]:
    own, mapped = row["anonymous_mib"], row["mapped_mib"]
    return [
        f"{row['gigabytes']:g}",
        f"{row['first_step_seconds']:.1f}",
        MISSING if own is None else f"{own:,}",
        MISSING if own is None else f"{own - least:,}",
        MISSING if mapped is None else f"{mapped:,}",
        f"{row['tokens_per_second']:,.0f}",
    ]
