"""train.tokenize: every format, any number of workers, and interruptions give the same shards."""

import gzip
import json
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import zstandard

from based_jax.data import PackedTokens, load_documents, load_tokenizer
from based_jax.data.documents import REPORT, Document
from based_jax.data.shards.blocks import Block, BlockEncoder, Position, encode_blocks, find_sources
from based_jax.data.shards.manifest import HeldOutRule, Manifest
from based_jax.data.shards.tokenize import JOURNAL, Progress, tokenize
from based_jax.data.tokenizers import FileTokenizer
from based_jax.training.commands.tokenize import PROG, main
from tests.commands import refused, run_here
from tests.floors import ROOT

TEXTS = [f"text {n} " * (n % 7 + 1) + "é\n" for n in range(40)]
NONE = HeldOutRule(0.0, None, None)


def _write(directory: Path, kind: str) -> Path:
    directory.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    contents = {"jsonl": lines, "jsonl.gz": gzip.compress(lines), "jsonl.zst": zstandard.compress(lines)}
    path = directory / f"a.{kind}"
    if kind == "txt":
        for n, text in enumerate(TEXTS):
            (directory / f"{n:03}.txt").write_bytes(text.encode())
        return directory
    else:
        path.write_bytes(contents[kind])
    return path


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks in each file."""
    monkeypatch.setattr("based_jax.data.shards.blocks.BLOCK", 100)
    monkeypatch.setattr("based_jax.data.readers._CHUNK", 50)


def _run(
    out: Path, spec: Path, rule: HeldOutRule = NONE, *, workers: int = 1, shard_tokens: int = 1 << 20, **more
):
    sources = find_sources([str(spec)])
    return tokenize(
        sources, load_tokenizer(), out, workers=workers, rule=rule, shard_tokens=shard_tokens, **more
    )


def _contents(out: Path) -> dict[str, bytes]:
    files = [*sorted(out.rglob("*.npy")), out / REPORT]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "txt"])
def test_every_format_gives_the_stream_of_the_in_memory_path(tmp_path, kind):
    manifest = _run(tmp_path / "out", _write(tmp_path / "in", kind))
    packed = PackedTokens.from_documents(
        load_documents(str(_write(tmp_path / "x", "txt"))).documents, load_tokenizer()
    )
    (shard,) = manifest.splits["train"].shards
    tokens = np.load(tmp_path / "out" / shard.file, mmap_mode="r")
    starts = np.load(tmp_path / "out" / shard.starts_file, mmap_mode="r")
    assert tokens.dtype == np.uint16
    assert starts.dtype == np.int64
    np.testing.assert_array_equal(tokens, packed.tokens)
    np.testing.assert_array_equal(starts, packed.starts)
    assert (shard.documents, shard.tokens, shard.bytes) == (len(TEXTS), len(packed), packed.num_bytes)
    assert shard.crc32_tokens == zlib.crc32(tokens.tobytes()) == packed.checksum
    assert shard.crc32_starts == zlib.crc32(starts.tobytes())
    assert Manifest.read(tmp_path / "out") == manifest


@pytest.mark.usefixtures("small_blocks")
def test_small_shards_whatever_the_workers_and_the_interruptions(tmp_path):
    spec, rule = _write(tmp_path / "in", "jsonl.gz"), HeldOutRule(0.3, None, None)
    manifest = _run(tmp_path / "a", spec, rule, shard_tokens=50)
    assert all(s.tokens <= 50 or s.documents == 1 for s in manifest.splits["train"].shards)
    assert any(s.tokens > 50 for s in manifest.splits["train"].shards)
    _run(tmp_path / "b", spec, rule, shard_tokens=50, workers=3)
    interruptions = 0
    for _ in range(100):  # three blocks at a time
        calls = [False, True, True]
        if _run(tmp_path / "c", spec, rule, shard_tokens=50, progress=lambda now, c=calls: c.pop()):
            break
        assert (tmp_path / "c" / JOURNAL).exists()
        interruptions += 1
    assert interruptions > 2
    assert _contents(tmp_path / "a") == _contents(tmp_path / "b") == _contents(tmp_path / "c")
    assert Manifest.read(tmp_path / "a") == Manifest.read(tmp_path / "c")


def test_finished_and_other_settings(tmp_path, capsys, monkeypatch):
    spec, out = _write(tmp_path / "in", "jsonl"), tmp_path / "out"
    argv = ["--data", spec, "--tokenizer", "byte", "--out", out, "--workers", 1]
    assert run_here(PROG, main, argv, capsys).status == 0
    before = _contents(out)
    again = run_here(PROG, main, argv, capsys)
    assert again.status == 0
    assert f"next: based-jax train lm --data tokens:{out} --workdir runs/out\n" in again.out
    assert "not read" not in again.out
    ended = run_here(PROG, main, [*argv, "--held-out", 0.5], capsys)
    assert ended.status == 2
    assert "held_out = {'fraction': 0.5" in ended.err
    spec.write_bytes(spec.read_bytes() + b"\n")
    assert "files as they were" in run_here(PROG, main, argv, capsys).err
    assert _contents(out) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    monkeypatch.delattr("os.sched_getaffinity", raising=False)  # as on macOS and Windows
    ended = run_here(PROG, main, [*argv[:4], "--out", tmp_path / "other"], capsys)
    assert ended.status == 2
    assert "an empty or new directory" in ended.err
    (tmp_path / "other" / JOURNAL).write_text('{"of": "another program"}')
    ended = run_here(PROG, main, [*argv[:4], "--out", tmp_path / "other"], capsys)
    assert ended.status == 2
    assert f"{tmp_path / 'other' / JOURNAL}: expected the progress" in ended.err


@pytest.mark.usefixtures("small_blocks")
def test_a_damaged_journal_is_refused(tmp_path):
    """Wherever a number, a string or null of it is another one."""
    spec, rule = _write(tmp_path / "in", "jsonl"), HeldOutRule(0.3, None, 300)
    assert _run(tmp_path / "out", spec, rule, shard_tokens=50, progress=lambda now: False) is None
    path = tmp_path / "out" / JOURNAL
    text = path.read_text()
    values = list(re.finditer(r": ([^{\[\n]+?)(?=,?\n)", text))
    assert len(values) > 20
    for value in values:
        path.write_text(text[: value.start(1)] + '"x"' + text[value.end(1) :])
        with pytest.raises(ValueError, match=r"progress\.json: expected the progress of this command, undam"):
            _run(tmp_path / "out", spec, rule, shard_tokens=50)
    path.write_text(text)
    assert _run(tmp_path / "out", spec, rule, shard_tokens=50) is not None


@pytest.mark.usefixtures("small_blocks")
def test_what_was_written_after_the_last_save_is_cut_back(tmp_path, monkeypatch):
    monkeypatch.setattr("based_jax.data.shards.tokenize._SAVE_EVERY", 0)
    spec, rule = _write(tmp_path / "in", "jsonl"), HeldOutRule(0.3, None, 300)
    whole = _run(tmp_path / "a", spec, rule, shard_tokens=50)
    generator, again, interruptions = random.Random(0), None, 0
    while again is None:
        moments = iter(range(generator.randint(1, 3)))

        def fail(now: Progress, moments=moments) -> bool:
            next(moments)  # ends it with a StopIteration after that many blocks, the last of them not saved
            return True

        try:
            again = _run(tmp_path / "b", spec, rule, shard_tokens=50, progress=fail)
        except StopIteration:
            interruptions += 1
            (tmp_path / "b" / f".{JOURNAL}-{interruptions}").mkdir()  # as a kill during a save leaves it
    assert interruptions > 2
    assert again == whole
    assert _contents(tmp_path / "a") == _contents(tmp_path / "b")
    assert not [*(tmp_path / "b").glob(f".{JOURNAL}*")]


def _position(out: Path) -> list[int]:
    """How far the journal has come."""
    return json.loads((out / JOURNAL).read_bytes())["state"]["position"] if (out / JOURNAL).exists() else [0]


# Runs a command and prints the most memory, in KiB, that any of its processes had.
MEASURED = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "train.tokenize", *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path):
    """A file of 200 MB, and twice that unpacked, against one of 2 MB, which fills no queue of blocks."""
    generator, peaks = np.random.default_rng(0), []
    for megabytes in (2, 200):
        path = tmp_path / f"{megabytes}.jsonl.gz"
        with gzip.open(path, "wt", compresslevel=1) as file:
            while path.stat().st_size < megabytes * 1_000_000:
                texts = [generator.bytes(size).hex() for size in generator.integers(1, 4000, 500)]
                file.write("".join(json.dumps({"text": text}) + "\n" for text in texts))
        argv = ["--data", path, "--tokenizer", "byte", "--workers", "2", "--out", tmp_path / str(megabytes)]
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *argv], cwd=ROOT, check=True, capture_output=True, text=True
        )
        peaks.append(int(done.stdout) / 1024)
    print("peak memory, MiB:", peaks)
    assert peaks[1] - peaks[0] < 50


def test_settings_that_found_no_document_may_change(tmp_path, capsys):
    spec, out = _write(tmp_path / "in", "jsonl"), tmp_path / "its shards"
    argv = ["--data", spec, "--tokenizer", "byte", "--workers", 1, "--held-out", 0, "--out"]
    nothing = refused(PROG, main, [*argv, out, "--text-field", "nope"], capsys)
    assert "at least one training document" in nothing
    ended, other = (run_here(PROG, main, [*argv, path], capsys) for path in (out, tmp_path / "other"))
    assert (ended.status, other.status) == (0, 0)
    assert f"--data 'tokens:{out}' --workdir 'runs/its shards' --eval-every 0\n" in ended.out
    assert _contents(out) == _contents(tmp_path / "other")


def test_shards_are_not_written_where_the_text_is(tmp_path, capsys):
    """What has been written would be read when the same command continues."""
    _write(tmp_path / "in", "jsonl")
    argv = ["--data", tmp_path, "--tokenizer", "byte", "--out", tmp_path / "in" / "shards"]
    assert "a directory outside of" in refused(PROG, main, argv, capsys)


def test_named_records_are_held_out_and_unknown_names_refused(tmp_path):
    path = tmp_path / "a.fa"
    path.write_text(">chr1\nACGT\nAC\n>chr2\nGGTTA\n>chr3\nTTT\n")
    dna = load_tokenizer("dna")

    def held_out(out: Path, names: str) -> Manifest:
        rule = HeldOutRule(0.0, names, None)
        manifest = tokenize(find_sources([str(path)]), dna, out, workers=1, rule=rule)
        assert manifest is not None
        return manifest

    splits = held_out(tmp_path / "out", "chr2").splits
    assert (splits["train"].documents, splits["train"].bytes) == (2, 9)
    assert (splits["held_out"].documents, splits["held_out"].bytes) == (1, 5)
    with pytest.raises(ValueError, match=r"held_out_names.*chr9"):
        held_out(tmp_path / "unknown", "chr2,chr9")


@pytest.mark.release
def test_an_interrupted_command_speaks_of_text_and_goes_on(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / "in" / f"{number:02}.txt").write_text("ab" * 500_000)
    out = tmp_path / "out"
    argv = [sys.executable, "-m", "train.tokenize", "--data", str(tmp_path / "in"), "--tokenizer", "byte"]
    argv += ["--workers", "1", "--held-out", "0", "--out", str(out)]
    process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (out / JOURNAL).exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "SIGINT: stopping after this block of text; again to stop now" in err
    assert "run the same command to resume" in err
    assert 0 < _position(out)[0] < 20
    assert main(argv[3:]) == 0
    assert Manifest.read(out).splits["train"].documents == 20


def test_concurrent_blocks_keep_their_order(monkeypatch):
    vocabulary = {"<|endoftext|>": 0} | {f"word{i}": i + 1 for i in range(7)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = FileTokenizer(words.to_str())
    texts = [f"word{i % 7} " * (5_000 if i % 2 else 1 + i) for i in range(20)]
    blocks = []
    for i, text in enumerate(texts):
        blocks.append(Block(Position(i, 0, 0), i))
        blocks[-1].add(0, Document(f"{i}", text))
    results = list(encode_blocks(blocks, BlockEncoder(tokenizer), 3))
    assert [block.end.file for block, _ in results] == list(range(20))
    for (_, encoded), text in zip(results, texts, strict=True):
        np.testing.assert_array_equal(encoded.tokens[1:], tokenizer.encode(text))
    broken = BlockEncoder(tokenizer)
    monkeypatch.setattr(tokenizer, "encode_batch", lambda texts: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        list(encode_blocks(blocks, broken, 3))
