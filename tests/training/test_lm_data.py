"""Training from token shards and mixtures: exact resumes, what a run reports, and what it refuses."""

import dataclasses
import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from based_jax.data import NucleotideTokenizer, ReadOptions
from based_jax.data.packed import Mixture
from based_jax.data.shards.reader import TokenShards
from based_jax.training.commands import lm
from based_jax.training.commands.tokenize import main as tokenize_main
from based_jax.training.lm_data import plan_data
from based_jax.training.run.directory import parse_run
from based_jax.training.run.metrics import read_metrics
from tests.data.shards.directories import write_shards
from tests.training.runs import copy_run, losses, resumes_bit_exactly, stop_at
from tests.training.test_hosts import CLOSE, finish, together


@pytest.fixture(scope="session")
def shards(text, tmp_path_factory) -> Path:
    """The fixture `text` in 18 shards of two documents each, and four documents held out."""
    texts = [path.read_text() for path in sorted(text.iterdir())]
    train = [texts[i : i + 2] for i in range(0, 36, 2)]
    shards = write_shards(tmp_path_factory.mktemp("shards"), train, [texts[36:38], texts[38:]])
    (shards / "chat_template.jinja").write_text("{{ messages }}")
    return shards


@pytest.fixture(scope="session")
def from_shards(one_layer, shards):
    """Settings of a run: `one_layer`'s, without those that say how text is read."""
    settings = {key: value for key, value in one_layer.items() if key != "held_out"}
    return {**settings, "data": f"tokens:{shards}"}


@pytest.fixture(scope="session")
def whole(from_shards, tmp_path_factory) -> tuple[Path, lm.Run]:
    """A run that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, lm.train(lm.LMConfig(workdir=workdir, **from_shards))


@pytest.mark.slow
def test_a_run_from_shards_learns(whole, shards):
    workdir, run = whole
    lines = read_metrics(workdir / "metrics.jsonl")
    assert lines[-1]["loss"] < lines[0]["loss"] - 1
    assert lines[-1]["eval_loss"] < lines[0]["loss"] - 1
    held_out = TokenShards.open(shards, "held_out")
    targets = len(held_out) - 2  # of two shards
    bits = lines[-1]["eval_loss"] * targets / np.log(2) / held_out.num_bytes
    assert lines[-1]["eval_bits_per_byte"] == pytest.approx(bits)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (workdir / "model" / name).read_bytes() == (shards / name).read_bytes()
    assert run.tokenizer.name == "byte"


@pytest.mark.release
def test_a_run_that_was_stopped_resumes_bit_exactly(whole, from_shards, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        stop_at(7, patch)
        run = lm.train(lm.LMConfig(workdir=tmp_path, **{**from_shards, "checkpoint_every": 0}))
    assert run.outcome.stopped_by == signal.SIGTERM
    resumes_bit_exactly(tmp_path, whole)


@pytest.mark.slow
def test_two_processes_read_what_one_reads(whole, from_shards, tmp_path):
    finish(together(from_shards, tmp_path, 2, 1))
    np.testing.assert_allclose(losses(tmp_path), losses(whole[0]), **CLOSE)


@pytest.mark.release
def test_resume_refuses_changed_shards(whole, shards, tmp_path):
    moved = Path(shutil.copytree(shards, tmp_path / "moved"))
    copy = copy_run(whole[0], tmp_path / "run", data=f"tokens:{moved}")
    config = parse_run(lm.LMConfig, ["--workdir", str(copy), "--resume"], lm.PROG)
    original = dataclasses.replace(config, data=f"tokens:{shards}")
    both = [lm.assemble(settings) for settings in (config, original)]
    moved_to, before = (lm.fingerprint(parts.training, parts.held_out) for parts in both)
    assert moved_to == before
    shutil.rmtree(moved)
    write_shards(moved, [["another text " * 20]], [["held out"]])
    with pytest.raises(ValueError, match=r"expected the same training text as in the run"):
        lm.train(config)


@pytest.mark.release
def test_a_mixture_trains_and_reports_each_part(from_shards, shards, text, tmp_path):
    data = f"tokens:{shards}=0.75,{text}=0.25"
    settings = {**from_shards, "data": data, "held_out": 0.2, "steps": 12}
    parts = lm.assemble(lm.LMConfig(workdir=tmp_path, **settings))
    assert parts.summary["data"].startswith(f"75.0% tokens:{shards}: 18 shards")
    assert f"; 25.0% {text}: 40 files" in parts.summary["data"]
    first = next(parts.batches)["inputs"]
    assert first.shape == (4, 32)
    lm.train(lm.LMConfig(workdir=tmp_path, **settings))
    line = read_metrics(tmp_path / "metrics.jsonl")[-1]
    names = [shards.name, text.name]
    assert isinstance(parts.held_out, Mixture)
    sizes = [part.num_windows(1, drop_last=False) for part in parts.held_out.parts]
    mean = sum(line[f"eval_loss/{name}"] * size for name, size in zip(names, sizes, strict=True)) / sum(sizes)
    assert line["eval_loss"] == pytest.approx(mean)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"held_out": 0.3}, r"held_out = 0.3: expected no such flag with --data tokens:"),
        ({"held_out_names": "a"}, "held_out_names = 'a': expected no such flag"),
        ({"include": "*.rst"}, r"include = '\*.rst': expected no such flag"),
        ({"reading": ReadOptions(encoding="latin-1")}, "encoding = 'latin-1': expected no such flag"),
        ({"tokenizer": "dna"}, "tokenizer = 'dna' with 6 tokens: expected that of the shards in"),
        ({"data": "SHARDS"}, r"expected text; these are token shards: --data tokens:"),
        ({"data": "tokens:/no/such"}, r"/no/such: expected token shards with a manifest\.json"),
        ({"length": 100_000}, r"stream = '\d+ tokens': expected at least 100001 tokens"),
    ],
)
def test_what_does_not_fit_is_one_error(from_shards, shards, change, message, tmp_path):
    change = {name: str(shards) if value == "SHARDS" else value for name, value in change.items()}
    with pytest.raises((ValueError, OSError), match=message):
        lm.assemble(lm.LMConfig(workdir=tmp_path, **{**from_shards, **change}))


def test_shards_without_a_held_out_side_need_no_evaluation(from_shards, tmp_path):
    data = write_shards(tmp_path / "a", [["some text " * 20]])
    settings = {**from_shards, "data": f"tokens:{data}"}
    with pytest.raises(ValueError, match="a held-out side or --eval-every 0"):
        lm.assemble(lm.LMConfig(workdir=tmp_path, **settings))
    lm.assemble(lm.LMConfig(workdir=tmp_path, **{**settings, "eval_every": 0}))


@pytest.mark.slow
def test_a_vocabulary_of_more_than_two_bytes(from_shards, tmp_path):
    """From the tokenizer's file to the batches; an id that lost its third byte would be another word."""
    words = {"<|endoftext|>": 0, **{f"w{number}": number for number in range(1, 70_000)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    begins = {"special_tokens": [("w2", 2)]}
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("w2 $A", **begins)
    tokenizer.save(str(tmp_path / "words.json"))
    ids = np.random.default_rng(0).integers(65_000, 70_000, (50, 40))
    lines = (json.dumps({"text": " ".join(f"w{number}" for number in row)}) for row in ids.tolist())
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    out, argv = tmp_path / "shards", ["--data", str(tmp_path / "a.jsonl"), "--held-out", "0.2"]
    argv += ["--tokenizer", str(tmp_path / "words.json"), "--workers", "2"]
    assert tokenize_main([*argv, "--out", str(out)]) == 0
    sides = [TokenShards.open(out, side) for side in ("train", "held_out")]
    assert {side.manifest.dtype for side in sides} == {"uint32"}
    stored = [shard.tokens for side in sides for shard in [side.shard(0)]]
    rows = [row for tokens in stored for row in tokens[tokens != 0].reshape(-1, 40).tolist()]
    assert sorted(rows) == sorted(ids.tolist())
    settings = {**from_shards, "data": f"tokens:{out}", "length": 16}
    parts = lm.assemble(lm.LMConfig(workdir=tmp_path / "run", **settings))
    assert parts.model.config.vocab_size == 70_000
    inputs = next(parts.batches)["inputs"]
    assert {2} < {*inputs.flat} <= {2, *ids.flat}
    assert inputs.max() > 1 << 16


def test_a_plan_names_the_shards_or_how_to_make_them(from_shards, shards, tmp_path):
    config = lm.LMConfig(workdir=tmp_path, **from_shards)
    found = plan_data(config, 32)
    assert found.rows["data"].startswith(f"tokens:{shards}: 18 shards, 36 documents")
    assert found.rows["batches"] == "drew the first 2 of 4 x 32 tokens"
    missing = lm.LMConfig(workdir=tmp_path, data="tokens:a b=1,src=1", tokenizer="gpt2")
    assert plan_data(missing, 32).rows["make them"].endswith("--out 'a b'")
    dna = write_shards(tmp_path / "dna", [["ACGT" * 20]], [["ACGT"]], NucleotideTokenizer())
    assert lm.planned_vocab_size(lm.LMConfig(workdir=tmp_path, data=f"tokens:{dna}")) == 6


def test_a_plan_reads_the_text_and_reports_what_would_stop_the_run(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for name, record in {"a": {"body": {"content": "some text " * 50}}, "b": {"title": "other"}}.items():
        (text / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    config = lm.LMConfig(workdir=tmp_path / "run", data=str(text / "a.jsonl"), batch_size=2)
    found = plan_data(config, 32)
    assert not found.can_run
    assert "'text', but its string fields are body.content (--text-field" in found.rows["stops it"]
    body = ReadOptions(text_field="body.content")
    found = plan_data(dataclasses.replace(config, reading=body), 32)
    assert found.rows["batches"] == "drew the first 2 of 2 x 32 tokens"
    for change, message in (
        ({"data": str(text)}, r"b\.jsonl, line 1: .* 'body\.content', but its string fields are title"),
        ({"tokenizer": "no.json"}, "tokenizer = 'no.json'"),
        ({"data": "nowhere"}, "there is no such path"),
        ({"data": str(text), "workdir": text / "run"}, "a directory outside of"),
    ):
        found = plan_data(dataclasses.replace(config, reading=body, **change), 32)
        assert re.search(message, found.rows["stops it"])
    found = plan_data(dataclasses.replace(config, reading=body), 1000)
    assert "expected at least 1001 tokens" in found.rows["stops it"]
