"""The command `eval long` on a tiny model: scores against whole forward passes, resumption, pages, errors."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import based_jax as bj
from based_jax.data.tokenizers import load_tokenizer
from based_jax.evals.card.subject import without
from based_jax.evals.long import __main__ as command
from based_jax.evals.long.questions import Question, make_question
from based_jax.evals.long.run import Reader
from based_jax.models import MixerSpec, ModelConfig
from tests.arrays import normals
from tests.commands import refused
from tests.marks import release_but

BYTES = load_tokenizer("byte")
CONFIG = ModelConfig(
    BYTES.vocab_size,
    16,
    "LA",
    {"L": MixerSpec("linear_attention", {"num_heads": 2}), "A": MixerSpec("attention", {"num_heads": 2})},
    mlp_hidden=16,
)
MODEL = bj.LanguageModel(CONFIG)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory of random weights, and the weights."""
    directory = tmp_path_factory.mktemp("checkpoints") / "tiny"
    params = normals(MODEL.init, np.zeros((1, 8), np.int32))
    bj.save_pretrained(directory, MODEL, params)
    return directory, params


@pytest.mark.parametrize("off", release_but([None], [None, "linear_attention"]))
def test_answers_are_those_of_whole_forward_passes(saved, off):
    _, params = saved
    asked = ("multi_value", 500), ("dna", 540)
    questions = [make_question(family, length, 0.5, "seed", BYTES) for family, length in asked]
    reader = Reader(MODEL, params, off=off, chunk=200)
    answers, costs = reader.ask(questions, BYTES)
    assert costs == {"read_ms": None, "decode_ms": None}  # the call compiled
    again, costs = reader.ask(questions, BYTES)
    assert again == answers
    assert all(cost and cost > 0 for cost in costs.values())
    logits = jax.jit(without(MODEL, params, off))
    for question, answer in zip(questions, answers, strict=True):
        prompt = question.tokens(BYTES)
        space = " " if question is questions[0] else ""
        texts = (*question.answers, *question.wrong)
        tried = [[*prompt, *BYTES.encode(space + text)] for text in texts]
        losses = jax.nn.log_softmax(logits(jnp.asarray(tried)).astype(np.float32))
        rows = np.asarray(tried)[:, len(prompt) :]
        scores = np.take_along_axis(np.asarray(losses)[:, len(prompt) - 1 : -1], rows[..., None], axis=2).sum(
            (1, 2)
        )
        right, wrong = np.split(scores, [len(question.answers)])
        ranks = 1 + (wrong[None] > right[:, None]).sum(axis=1)
        assert answer.rank == ranks.mean()
        assert answer.first == (ranks == 1).mean()
        made = bj.generate(MODEL, params, prompt[None], question.budget(BYTES)) if off is None else None
        assert made is None or BYTES.decode(made[0]).partition("\n")[0] == answer.generated


def test_a_wrong_answer_may_be_longer_than_the_right_ones(saved):
    question = Question("x" * 100, ("a",), ("b" * 100,))
    (answer,), _ = Reader(MODEL, saved[1]).ask([question], BYTES)
    assert answer.rank in (1, 2)


def run(directory, out, *flags: str) -> str:
    """Run the command on few questions and return its summary."""
    few = ["--depths", "0.5", "--samples", "2", "--batch-size", "2", "--chunk", "128"]
    assert command.main(["--checkpoint", str(directory), "--out", str(out), *few, *flags]) == 0
    return (out / "tiny.json").read_text()


@pytest.mark.release
def test_a_run_is_resumed_and_extended(saved, tmp_path, capsys):
    flags = "--lengths", "300", "--families", "single"
    first = run(saved[0], tmp_path, *flags, "--no-parts")
    lines = (tmp_path / "tiny.jsonl").read_text().splitlines()
    both = json.loads(run(saved[0], tmp_path, *flags))
    assert (tmp_path / "tiny.jsonl").read_text().splitlines()[:2] == lines
    assert "has 2 of 6 questions" in capsys.readouterr().err
    assert [cell["off"] for cell in both["cells"]] == [None, "linear_attention", "attention"]
    assert both["cells"][0] == json.loads(first)["cells"][0]
    page = (tmp_path / "index.html").read_text()
    assert "linear_attention" in page
    assert "Right first, by depth" in page


def test_dna_is_asked_with_its_own_tokenizer(tmp_path):
    tokenizer = load_tokenizer("dna")
    mixers = {"L": MixerSpec("linear_attention", {"num_heads": 2})}
    model = bj.LanguageModel(ModelConfig(tokenizer.vocab_size, 16, "L", mixers, mlp_hidden=16))
    checkpoint, genome = tmp_path / "tiny", tmp_path / "genome.fa"
    bj.save_pretrained(checkpoint, model, normals(model.init, np.zeros((1, 8), np.int32)))
    tokenizer.save(checkpoint)
    genome.write_text(">chr1\nACGTTGCA\nNNACCA\n")
    with pytest.raises(ValueError, match="families = 'single,multi_key': expected dna"):
        run(checkpoint, tmp_path / "out")
    flags = "--families", "dna", "--haystack", str(genome), "--lengths", "300", "--no-parts"
    (cell,) = json.loads(run(checkpoint, tmp_path / "out", *flags))["cells"]
    assert cell["questions"] == 2
    assert cell["chance"] == 1 / 16
    assert 1 <= cell["rank"] <= 16


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lengths", "1m"], "lengths = '1m': expected numbers of tokens"),
        (["--json", "."], "json = '.': expected a file"),
        (["--lengths", "64"], "length = 64: expected at least"),
        (["--families", "singel"], "families = 'singel'"),
        (["--families", "qa"], "questions = None: expected a file"),
        (["--name", "a+b"], "name = 'a+b': expected letters"),
        (["--depths", "2"], "depths = 2.0: expected from 0 to 1"),
        (["--haystack", "no_such_file.txt"], "no_such_file.txt"),
        (["--haystack", "genome.fa"], "haystack = 'genome.fa': expected noise, a FASTA file for dna alone"),
        (["--haystack", "needles", "--families", "dna"], "haystack = 'needles': expected noise"),
    ],
)
def test_bad_flags(saved, tmp_path, capsys, flags, message):
    argv = ["--checkpoint", saved[0], "--out", tmp_path, *flags]
    assert message in refused(command.PROG, command.main, argv, capsys)


def test_bad_files(saved, tmp_path, capsys):
    """Rows without questions, and records of another run."""
    argv = ["--checkpoint", saved[0], "--out", tmp_path]
    asked = ["--families", "qa", "--questions", tmp_path / "questions.jsonl"]
    message = "questions.jsonl, row 1': expected an object with text, question and answer"
    for row in ('{"text": "a", "question": "b"}', '{"text": "a", "question": "b", "answer": []}', "[]"):
        asked[-1].write_text(row)
        assert message in refused(command.PROG, command.main, argv + asked, capsys)
    (tmp_path / "tiny.jsonl").write_text('{"id": "None/single/300/0.5/0.0", "run": "another"}\n')
    asked = ["--lengths", "300", "--no-parts", "--families", "single"]
    message = "tiny.jsonl': expected a new file or one of this run: of the same model"
    assert message in refused(command.PROG, command.main, argv + asked, capsys)
