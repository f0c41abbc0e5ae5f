"""``based-jax generate`` on a tiny byte-level model."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from based_jax.convert import save_pretrained
from based_jax.data.tokenizers import ByteTokenizer
from based_jax.generate import __main__ as cli
from based_jax.generate import generate
from tests.commands import Ended, refused, run_here
from tests.generate.tiny import make_bytes


@pytest.fixture(scope="module")
def model():
    return make_bytes()


@pytest.fixture(scope="module")
def directory(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pretrained")
    save_pretrained(path, *model)
    ByteTokenizer().save(path)
    return path


@pytest.fixture(scope="module")
def expected(model) -> str:
    """What 20 greedy tokens after "def" say."""
    prompt = [[256, *b"def"]]
    tokens = np.asarray(generate(*model, prompt, 20, stop_tokens=[256]))[0]
    tokens = tokens[: tokens.tolist().index(256)] if 256 in tokens else tokens
    return ByteTokenizer().decode(tokens)


@pytest.fixture
def run(capsys) -> Callable[..., Ended]:
    return lambda *argv: run_here(cli.PROG, cli.main, argv, capsys)


GREEDY = ("--prompt", "def", "--max-new-tokens", 20, "--temperature", 0)


@pytest.mark.parametrize("flags", [(), ("--tokenizer", "byte", "--top-k", "3", "--top-p", "None")])
def test_prints_prompt_and_continuation(run, directory, expected, flags):
    status, out, err = run("--checkpoint", directory, *GREEDY, *flags)
    assert status == 0
    assert out == f"def{expected}\n"
    assert err.endswith(" tokens/s\n")
    assert err.startswith("20 tokens: first after ")


def test_seed_decides_the_sample(run, directory):
    flags = ("--checkpoint", directory, "--prompt", "", "--max-new-tokens", 12, "--temperature", 1.5)
    texts = [run(*flags, "--seed", seed)[1] for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_penalties_and_min_p_are_heard(run, directory, expected):
    assert len(set(expected)) < len(expected)
    _, out, _ = run("--checkpoint", directory, *GREEDY, "--repetition-penalty", 1e6)
    assert len(set(out[3:-1])) > len(set(expected))
    hot = ("--checkpoint", directory, "--prompt", "def", "--max-new-tokens", 20, "--temperature", 9)
    assert run(*hot, "--min-p", 1)[1] == f"def{expected}\n"  # the most likely token alone


def test_stop_texts_are_not_printed(run, directory, expected):
    stop = expected[6:8]
    _, out, _ = run("--checkpoint", directory, *GREEDY, "--stop", "never said", stop)
    assert out == f"def{expected[: expected.find(stop)]}\n"


def test_run_directory(run, directory, expected, tmp_path):
    shutil.copytree(directory, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()  # 257 tokens are bytes
    assert run("--checkpoint", tmp_path, *GREEDY)[1] == f"def{expected}\n"


def test_interrupt_ends_the_text(capsys):
    class Pieces:
        tokens = 0

        def __iter__(self):
            for text in ("one ", "two"):
                self.tokens += 3
                yield text
            raise KeyboardInterrupt

    assert cli.show("zero ", Pieces()) == 130
    out, err = capsys.readouterr()
    assert out == "zero one two\n"
    assert err.startswith("6 tokens, interrupted: first after ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--wrong",), "--wrong"),
        (("--checkpoint", "nowhere/at/all"), "nowhere/at/all"),
        (("--checkpoint", "."), "expected a finished run"),
        (("--dtype", "int8"), "int8"),
        (("--temperature", "-1"), "temperature = -1.0: expected"),
        (("--temperature", "warm"), "warm"),
        (("--max-new-tokens", "0"), "max_new_tokens = 0: expected"),
        (("--seed", 2**64), f"seed = {2**64}: expected"),
        (("--stop", ""), "stop = '': expected"),
        (("--stop", "a\udcff"), "stop = 'a\\udcff': expected a text in UTF-8"),
        (("--tokenizer", "none.json"), "none.json"),
    ],
    ids=str,
)
def test_errors_are_one_line(directory, tmp_path, monkeypatch, capsys, flags, message):
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.chdir(tmp_path)  # an unfinished run
    assert message in refused(
        cli.PROG, cli.main, ("--checkpoint", directory, "--prompt", "a", *flags), capsys
    )


def test_a_vocabulary_without_its_tokenizer_is_an_error(directory):
    with pytest.raises(ValueError, match=r"^tokenizer = None: expected one to be given: .* has no"):
        cli.find_tokenizer(directory.parent, None, 50_257)
    with pytest.raises(
        ValueError, match=r"tokenizer = 'byte': expected a tokenizer with at most .* 250 tokens"
    ):
        cli.find_tokenizer(directory.parent, "byte", 250, 256)
