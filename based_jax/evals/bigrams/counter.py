"""Count the bigrams of a stream of any length in bounded memory.

    tokens -> buffer of keys -> sorted table in memory -> runs (count files) on disk -> one count file

A full buffer is sorted and merged into the table, a full table is written as a run, and the runs are merged
at the end.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from based_jax.evals.bigrams.table import BigramTable, bigram_keys, count_keys, merge_entries, merge_tables
from based_jax.validate import expect

SMALLEST_MEMORY = 1 << 16
_BUFFER_SHARE = 256  # bytes of the memory limit per token in the buffer, see _MERGE_BYTES in table.py
_TABLE_SHARE = 160  # bytes of the memory limit per entry of the table


class BigramCounter:
    """Counts bigrams in bounded memory; see the module.

    Args:
        vocab_size: every token is below it; at most 2^32.
        directory: an existing directory for runs.
        memory_bytes: NumPy arrays never take more than this.
        runs: files that an earlier counter wrote there, to continue from.

    Raises:
        ValueError: a value out of range, or runs of another vocabulary.
    """

    def __init__(
        self, vocab_size: int, directory: Path, memory_bytes: int = 1 << 30, runs: Sequence[str] = ()
    ) -> None:
        expect(1 <= vocab_size <= 1 << 32, "vocab_size", vocab_size, "from 1 to 2^32")
        expect(memory_bytes >= SMALLEST_MEMORY, "memory_bytes", memory_bytes, f"at least {SMALLEST_MEMORY}")
        self._vocab_size = vocab_size
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._buffer = np.empty(memory_bytes // _BUFFER_SHARE, np.uint64)
        self._used = 0
        self._table = merge_entries([])
        self._spilled = 0
        self.runs = list(runs)
        """names of the files in `directory` with all counts up to the last `spill`"""
        for run in self.runs:
            found = BigramTable.load(directory / run)
            size = found.vocab_size
            expect(size == vocab_size, "vocab_size", vocab_size, f"{size}, as in {run}")
            self._spilled += found.tokens
        self.tokens = self._spilled
        """number of bigrams counted so far"""

    def add(self, tokens: Integer[np.ndarray, " T"]) -> None:
        """Count the neighbouring pairs in an array of tokens; pairs across two calls do not count."""
        start, last = 0, len(tokens) - 1
        while start < last:
            count = min(last - start, self._buffer.size - self._used)
            chunk = np.asarray(tokens[start : start + count + 1])
            low, high = int(chunk.min()), int(chunk.max())
            expect(low >= 0 and high < self._vocab_size, "tokens", (low, high), f"in [0, {self._vocab_size})")
            self._buffer[self._used : self._used + count] = bigram_keys(chunk[:-1], chunk[1:])
            self._used += count
            self.tokens += count
            start += count
            if self._used == self._buffer.size:
                self._sort()
                if self._table[0].size > self._memory_bytes // _TABLE_SHARE:
                    self.spill()

    def _sort(self) -> None:
        """Move the buffer into the table."""
        self._table = merge_entries([self._table, count_keys(self._buffer[: self._used])])
        self._used = 0

    def spill(self) -> None:
        """Write the counts in memory as a run."""
        self._sort()
        if self.tokens == self._spilled:
            return
        name = f"run-{len(self.runs):06}.safetensors"
        self._memory_table("").save(self._directory / name)
        self.runs.append(name)
        self._table, self._spilled = merge_entries([]), self.tokens

    def finish(self, path: Path, source: str) -> BigramTable:
        """Write all counts to a count file and open it.

        Args:
            source: description of what was counted.
        """
        if not self.runs:
            self._sort()
            self._memory_table(source).save(path)
            return BigramTable.load(path)
        self.spill()
        runs = [BigramTable.load(self._directory / run) for run in self.runs]
        return merge_tables(runs, path, source, self._memory_bytes)

    def _memory_table(self, source: str) -> BigramTable:
        return BigramTable(*self._table, self._vocab_size, self.tokens - self._spilled, source)
