"""``based-jax export`` and the run.py that it leaves."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest
import tokenizers

from based_jax import command
from based_jax.convert import save_pretrained
from based_jax.data.tokenizers import ByteTokenizer, FileTokenizer, NucleotideTokenizer
from based_jax.export import Exported, runner
from based_jax.export import __main__ as cli
from based_jax.models.language_model import LanguageModel
from tests.data.libraries import FORGERIES, llama
from tests.export.conftest import unchecked
from tests.generate.tiny import Tiny, make_tiny
from tests.tolerances import BFLOAT16, assert_close

SMALL = ("--platforms", "cpu", "--batch-size", 1, "--prefill-chunk", 4, "--decode-chunk", 3)


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return make_tiny("C")


@pytest.fixture
def checkpoint(tiny, tmp_path) -> Path:
    """The model, and a tokenizer with a word for each of its tokens, the last one the separator."""
    save_pretrained(tmp_path / "model", tiny.model, tiny.params)
    words = {f"w{number}": number for number in range(49)} | {"<|endoftext|>": 49}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


@pytest.fixture
def run(capsys) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process: status, stdout, stderr."""

    def call(*argv: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            unchecked(command.run, cli.PROG, lambda: cli.main([str(arg) for arg in argv]))
        return (ended.value.code, *capsys.readouterr())

    return call


def test_command_and_runner(run, checkpoint, tiny, capsys):
    status, out, err = run("--checkpoint", checkpoint, *SMALL)
    assert (status, err) == (0, "")
    assert f"{checkpoint} -> {checkpoint}/exported in " in out
    assert "manifest.json" in out
    digest = json.loads((checkpoint / "exported" / "manifest.json").read_text())["sha256"]
    assert out.endswith(f"\nsha256 {digest}\n")
    argv = ["--tokens", "1,2,3", "--max-new-tokens", "5", "--directory", str(checkpoint / "exported")]
    argv += ["--sha256", digest]
    assert runner.main([*argv[:-1], "0f"]) == 2
    assert capsys.readouterr().err.startswith("run.py: sha256 = '0f': expected ")
    assert runner.main([*argv, "--max-new-tokens", str(10**30)]) == 2
    assert "max_new_tokens = 1000" in capsys.readouterr().err
    assert runner.main(argv) == 0
    assert capsys.readouterr().out == ",".join(map(str, tiny.greedy([1, 2, 3], 5))) + "\n"
    assert runner.main([*argv, "--temperature", "-1"]) == 2
    assert capsys.readouterr().err == "run.py: temperature = -1.0: expected a finite number, at least 0\n"


def test_the_runner_continues_texts(run, checkpoint, tiny, capsys, monkeypatch):
    assert run("--checkpoint", checkpoint, *SMALL)[0] == 0
    argv = ["--prompt", "w1 w2 w3", "--max-new-tokens", "7", "--directory", str(checkpoint / "exported")]
    new = tiny.greedy([49, 1, 2, 3], 7)
    words = [f"w{token}" for token in new[: new.index(49) if 49 in new else 7]]
    assert runner.main(argv) == 0
    assert capsys.readouterr().out == " ".join(["w1 w2 w3", *words]) + "\n"
    stop = f"{words[1]} {words[2]}"
    assert runner.main([*argv, "--stop", "never", "--stop", stop]) == 0
    assert capsys.readouterr().out == "w1 w2 w3" + f" {' '.join(words)}".partition(stop)[0] + "\n"
    assert runner.main([*argv, "--repetition-penalty", "1e6"]) == 0
    penalised = capsys.readouterr().out.removeprefix("w1 w2 w3").split()
    assert len({*penalised, "w1", "w2", "w3"}) == len(penalised) + 3  # no token twice
    assert len({*words, "w1", "w2", "w3"}) < len(words) + 3
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert runner.main(argv) == 2
    message = "run.py: tokenizer.json: needs the package tokenizers: pip install tokenizers\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), NucleotideTokenizer()], ids=lambda known: known.name)
def test_the_runner_reads_tokenizers_without_a_package(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokenizer.save(tmp_path)
    encode, decode = runner.read_tokenizer(tmp_path / "tokenizer.json")
    text = "ACGTUNacgtunRYSWKMBDHVr" + ("héllo €🙂" if tokenizer.name == "byte" else "")
    assert encode(text) == tokenizer.encode(text).tolist()
    ids = [*encode(text)[:-1], tokenizer.eot, 256, 5]
    assert decode(ids) == tokenizer.decode(ids)
    if tokenizer.name == "dna":
        with pytest.raises(ValueError, match=r"^prompt = 'AX': expected nucleotides"):
            encode("AX")


@pytest.mark.parametrize("name", FORGERIES)
def test_the_runner_reads_files_as_the_library_does(name, tmp_path):
    """Names of special tokens stay text, and a wrong byte leaves the characters around it."""
    library, text, _ = FORGERIES[name]
    tokenizer = FileTokenizer(library.to_str())
    tokenizer.save_prepared(tmp_path)
    encode, decode = runner.read_tokenizer(tmp_path / "tokenizer.json")
    assert encode(text) == tokenizer.encode(text).tolist()
    for ids in (encode(text), [2 + byte for byte in b"a\xe2\x98\x83\xf0\xc3\xa9"], [0, 1, 10**6, 2]):
        assert decode(ids) == tokenizer.decode(ids)


def test_the_runner_ends_at_stop_tokens(small, tmp_path, monkeypatch):
    """Those of the tokenizer's files too; and characters stay whole between the rounds."""
    tokenizer = FileTokenizer(llama().to_str())
    tokenizer.save_prepared(tmp_path)
    ids = [2 + byte for byte in "☃☃".encode()]
    hello = tokenizer.encode("hello").tolist()
    asked = {}

    def rounds(prompts, new, stops, sampling):
        asked.update(prompts=prompts, stops=stops)
        made, active = [*hello, *ids], np.array([True])
        for end in (8, 11, len(made)):  # the first two are within a character
            if active[0]:
                yield [made[:end]], active

    monkeypatch.setattr(small.exported, "_tokenizer", tmp_path / "tokenizer.json")
    monkeypatch.setattr(small.exported, "_rounds", rounds)
    files = {"file": "tokenizer.json", "sha256": "", "start": 1}
    for expected in ([1, 7], [1]):
        monkeypatch.setitem(small.exported.manifest, "tokenizer", files | {"stop_tokens": expected})
        assert small.exported.generate_text(["hello"], stop=["\ufffd"]) == [" hello☃☃"]
        assert asked == {"prompts": [[1, *hello]], "stops": expected}


@pytest.mark.slow
def test_dtype_and_directory(run, checkpoint, tiny, tmp_path):
    """Weights are stored in the narrower dtype, but for those that the model reads in float32."""
    out = tmp_path / "elsewhere"
    assert run("--checkpoint", checkpoint, "--out", out, "--dtype", "bfloat16", *SMALL)[0] == 0
    exported = Exported.load(out)
    assert exported.manifest["dtype"] == "bfloat16"
    assert {str(leaf.dtype) for leaf in exported.params.values()} == {"bfloat16", "float32"}
    tokens = np.array([[1, 2, 3, 4]], np.int32)
    logits, _ = exported.prefill(exported.init(1), tokens, np.ones((1, 4), bool))
    model = LanguageModel(tiny.model.config.replace(dtype="bfloat16"))
    right = jax.jit(lambda params: model.apply(params, tokens)[0])(tiny.params)
    assert_close(logits, right[:, -1], BFLOAT16)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--wrong",), "--wrong"),
        ((), "--checkpoint"),
        (("--checkpoint", "nowhere/at/all"), "nowhere/at/all"),
        (("--checkpoint", "GOOD", "--platforms", "cpu,tpu"), "platforms = 'tpu': expected one of 'cpu'"),
        (("--checkpoint", "GOOD", "--max-length", "0"), "max_length = 0: expected"),
        (("--checkpoint", "GOOD", "--dtype", "float64"), "--dtype"),
        (("--checkpoint", "EMPTY"), "config.json"),
        (("--checkpoint", "GOOD", "--out", "GOOD"), "expected a new one, or that of an export"),
    ],
    ids=str,
)
def test_errors_are_one_line(run, checkpoint, tmp_path, flags, message):
    (tmp_path / "empty").mkdir()
    paths = {"GOOD": checkpoint, "EMPTY": tmp_path / "empty"}
    status, out, err = run(*(paths.get(flag, flag) for flag in flags))
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (checkpoint / "exported").exists()


def test_how_the_runner_ends(monkeypatch, tmp_path, capsys):
    """Other encodings, Ctrl-C and a pipe that nobody reads, as of the library's commands."""
    argv = ["--prompt", "a"]
    with open(tmp_path / "out", "w", encoding="ascii") as ascii_only, monkeypatch.context() as patch:
        patch.setattr(runner, "_run", lambda options: print("é"))
        patch.setattr("sys.stdout", ascii_only)
        assert runner.main(argv) == 0
    assert (tmp_path / "out").read_text() == "\\xe9\n"
    monkeypatch.setattr(runner, "_run", Mock(side_effect=KeyboardInterrupt))
    assert (runner.main(argv), capsys.readouterr().err) == (130, "run.py: interrupted\n")
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(runner, "_run", lambda options: print("a"))
    with open(writing, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", pipe)
        assert runner.main(argv) == 141


def test_errors_of_the_runner(small, capsys):
    for argv, message in [
        (["--tokens", "1,x"], "argument --tokens: '1,x': expected integers"),
        (["--max-new-tokens", "3"], "--tokens"),
        (["--tokens", "1", "--directory", "nowhere"], "nowhere/manifest.json: expected an exported"),
        (["--prompt", "a", "--tokens", "1"], "not allowed with argument"),
        (["--tokens", "1", "--stop", "a"], "--stop goes with --prompt"),
        (["--prompt", "a", "--stop-tokens", "1"], "--stop-tokens goes with --tokens"),
        (["--prompt", "a", "--directory", "SMALL"], "no tokenizer was exported: give tokens, or export"),
        (["--prompt", "a", "--stop", "", "--directory", "SMALL"], "stop = ['']: expected texts"),
        (["--tokens", "1", "--max-new-tokens", "0", "--directory", "SMALL"], "max_new_tokens = 0: expected"),
    ]:
        try:
            status = runner.main([str(small.directory) if word == "SMALL" else word for word in argv])
        except SystemExit as ended:  # of argparse
            status = ended.code
        assert status == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.startswith("run.py: ")
        assert said.count("\n") == 1
