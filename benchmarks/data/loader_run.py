"""Parts of `benchmarks.data.loader`: shards of random tokens, the rate of a loader, a training process."""

import contextlib
import hashlib
import json
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from based_jax.data import Batch, ByteTokenizer
from based_jax.data.shards.manifest import HeldOutRule, Manifest, Shard, Split, TokenizerRecord, shard_file

SHARD_TOKENS = 1 << 26
"""Tokens of a shard except the last one: 128 MiB of 16-bit tokens."""

DOCUMENT_TOKENS = 1_000
"""Mean size of a document, whose sizes are geometrically distributed."""


def write_random_shards(directory: Path, num_bytes: int) -> None:
    """Write a directory of token shards with `num_bytes` of random tokens, and one held-out document."""
    tokenizer = ByteTokenizer()
    tokenizer.save(directory)
    digest = hashlib.sha256((directory / "tokenizer.json").read_bytes()).hexdigest()
    record = TokenizerRecord(tokenizer.name, tokenizer.vocab_size, tokenizer.eot, digest)
    sizes = [SHARD_TOKENS] * (num_bytes // (2 * SHARD_TOKENS))
    sizes += [rest] if (rest := num_bytes // 2 - sum(sizes)) > 1 else []
    train = Split.of(_write_shard(directory, "train", number, size) for number, size in enumerate(sizes))
    splits = {"train": train, "held_out": Split.of([_write_shard(directory, "held_out", 0, 1 << 14)])}
    rule = HeldOutRule(0.5, None, None)
    Manifest(record, "uint16", (), rule, SHARD_TOKENS, {}, splits).write(directory)


def _write_shard(directory: Path, side: str, number: int, size: int) -> Shard:
    rng = np.random.default_rng(number)
    sizes = 1 + rng.geometric(1 / DOCUMENT_TOKENS, 1 + 2 * size // DOCUMENT_TOKENS)
    starts = np.cumsum(sizes) - sizes
    starts = starts[starts < size - 1]
    tokens = rng.integers(0, 256, size, np.uint8).astype(np.uint16)
    tokens[[*starts, size - 1]] = ByteTokenizer.eot
    sums = zlib.crc32(tokens.data), zlib.crc32(starts.data)
    shard = Shard(shard_file(side, number), starts.size, size, size - 1 - starts.size, *sums)
    (directory / side).mkdir(exist_ok=True)
    np.save(directory / shard.file, tokens)
    np.save(directory / shard.starts_file, starts)
    return shard


def tokens_per_second(batches: Iterator[Batch], seconds: float) -> float:
    """Draw batches for so many seconds; return the tokens per second."""
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        count += next(batches)["targets"].size
    return count / elapsed


def train(data: Path, workdir: Path, steps: int) -> dict[str, Any]:
    """Run ``train lm`` on shards in its own process.

    Returns:
        first_step_seconds: from the start of the process to the end of its first step.
        tokens_per_second: median over the second half of the steps.
        anonymous_mib, mapped_mib: peaks of the process's own memory, and of resident pages of mapped files,
            which the system reclaims when memory is short; None if it does not report them.
    """
    command = [sys.executable, "-m", "train.lm", "--preset", "based-tiny", "--data", f"tokens:{data}"]
    command += ["--workdir", str(workdir), "--steps", str(steps), "--log-every", "1", "--eval-every", "0"]
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--checkpoint-every", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    peaks: dict[str, int] = {}
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peaks, ended.wait), daemon=True)
    watcher.start()
    assert process.stderr is not None
    first, lines = None, []
    with process:
        for line in process.stderr:
            lines.append(line)
            if first is None and re.match(r"step 1/", line):
                first = time.perf_counter() - begin
    status = process.wait()
    ended.set()
    watcher.join()
    if status or first is None:
        raise RuntimeError(f"train.lm ended with status {status}: {''.join(lines[-3:])}")
    logged = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["tokens_per_second"] for line in logged[len(logged) // 2 :]]
    return {
        "first_step_seconds": first,
        "tokens_per_second": float(np.median(speeds)),
        "anonymous_mib": peaks.get("RssAnon"),
        "mapped_mib": peaks.get("RssFile"),
    }


def _watch(pid: int, peaks: dict[str, int], ended: Callable[[float], bool]) -> None:
    """Track the maxima of a process's memory until it has ended."""
    while not ended(0.05):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            for name, kibibytes in re.findall(r"^(RssAnon|RssFile):\s+(\d+) kB", status, re.MULTILINE):
                peaks[name] = max(peaks.get(name, 0), int(kibibytes) // 1024)
