"""The command `eval long` on a tiny model: scores against whole forward passes, resumption, pages, errors."""

import copy
import json

import chex
import jax
import numpy as np
import pytest
from flax import linen as nn

import based_jax as bj
from based_jax.data.tokenizers import load_tokenizer
from based_jax.evals.card.subject import without
from based_jax.evals.long import __main__ as command
from based_jax.evals.long import run as long
from based_jax.evals.long.questions import Question, make_question
from based_jax.evals.long.run import Reader
from based_jax.models import MixerSpec, ModelConfig
from tests.arrays import normals
from tests.commands import refused
from tests.marks import slow_but

BYTES = load_tokenizer("byte")
CONFIG = ModelConfig(
    BYTES.vocab_size,
    16,
    "CA",
    {"C": MixerSpec("gated_conv"), "A": MixerSpec("attention", {"num_heads": 2})},
    mlp_hidden=16,
)
MODEL = bj.LanguageModel(CONFIG)
CHUNK = 160
"""of prompts of 300 and 310 tokens: the second chunk is not full"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory of random weights, and the weights."""
    directory = tmp_path_factory.mktemp("checkpoints") / "tiny"
    params = nn.meta.unbox(normals(MODEL.init, np.zeros((1, 8), np.int32)))
    bj.save_pretrained(directory, MODEL, params)
    return directory, params


@pytest.fixture(scope="module", autouse=True)
def readers():
    """Readers of the same model share their programs, which take most of a run's time."""
    made = {}

    def reader(model, params, *, off=None, chunk=512):
        first = made.setdefault((model, off, chunk), Reader(model, params, off=off, chunk=chunk))
        chex.assert_trees_all_equal(params, first.params)
        again = copy.copy(first)
        again._compiled = set()
        return again

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long, "Reader", reader)
        yield reader


@pytest.mark.parametrize("off", slow_but([None], [None, "gated_conv"]))
def test_answers_are_those_of_whole_forward_passes(saved, readers, off):
    _, params = saved
    asked = ("multi_value", 300), ("dna", 310)
    questions = [make_question(family, length, 0.5, "seed", BYTES) for family, length in asked]
    reader = readers(MODEL, params, off=off, chunk=CHUNK)
    answers, costs = reader.ask(questions, BYTES)
    assert costs == {"read_ms": None, "decode_ms": None}  # the call compiled
    again, costs = reader.ask(questions, BYTES)
    assert again == answers
    assert all(cost and cost > 0 for cost in costs.values())
    prompts = [question.tokens(BYTES) for question in questions]
    tried = [
        [*prompt, *BYTES.encode((" " if question is questions[0] else "") + text)]
        for question, prompt in zip(questions, prompts, strict=True)
        for text in (*question.answers, *question.wrong)
    ]
    padded = np.zeros((len(tried), max(map(len, tried))), np.int32)
    for row, tokens in zip(padded, tried, strict=True):
        row[: len(tokens)] = tokens
    losses = np.asarray(jax.jit(without(MODEL, params, off))(padded), np.float64)
    losses -= np.log(np.exp(losses).sum(axis=-1, keepdims=True))
    scores = iter(
        [loss[np.arange(len(tokens) - 1), tokens[1:]] for loss, tokens in zip(losses, tried, strict=True)]
    )
    budgets = [question.budget(BYTES) for question in questions]
    made = bj.generate(MODEL, params, prompts, max(budgets)) if off is None else None
    for index, (question, prompt, answer) in enumerate(zip(questions, prompts, answers, strict=True)):
        texts = (*question.answers, *question.wrong)
        sums = np.array([next(scores)[len(prompt) - 1 :].sum() for _ in texts])
        right, wrong = np.split(sums, [len(question.answers)])
        ranks = 1 + (wrong[None] > right[:, None]).sum(axis=1)
        assert answer.rank == ranks.mean()
        assert answer.first == (ranks == 1).mean()
        if made is not None:
            text = BYTES.decode(made[index, : budgets[index]])
            assert text.partition("\n")[0] == answer.generated


@pytest.mark.slow
def test_a_wrong_answer_may_be_longer_than_the_right_ones():
    """The caches have room for it."""
    model = bj.LanguageModel(CONFIG.replace(schedule="A"))
    question = Question("x" * 100, ("a",), ("b" * 100,))
    params = normals(model.init, np.zeros((1, 8), np.int32))
    (answer,), _ = Reader(model, params).ask([question], BYTES)
    assert answer.rank in (1, 2)


def run(directory, out, *flags: str) -> str:
    """Run the command on few questions and return its summary."""
    few = ["--depths", "0.5", "--samples", "2", "--batch-size", "2", "--chunk", str(CHUNK)]
    assert command.main(["--checkpoint", str(directory), "--out", str(out), *few, *flags]) == 0
    return (out / "tiny.json").read_text()


@pytest.mark.slow
def test_a_run_is_resumed_and_extended(saved, tmp_path, capsys):
    flags = "--lengths", "300", "--families", "multi_value"
    first = run(saved[0], tmp_path, *flags, "--no-parts")
    lines = (tmp_path / "tiny.jsonl").read_text().splitlines()
    both = json.loads(run(saved[0], tmp_path, *flags))
    assert (tmp_path / "tiny.jsonl").read_text().splitlines()[:2] == lines
    assert "has 2 of 6 questions" in capsys.readouterr().err
    assert [cell["off"] for cell in both["cells"]] == [None, "gated_conv", "attention"]
    assert both["cells"][0] == json.loads(first)["cells"][0]
    page = (tmp_path / "index.html").read_text()
    assert "gated_conv" in page
    assert "Right first, by depth" in page


@pytest.mark.slow
def test_dna_is_asked_with_its_own_tokenizer(tmp_path):
    tokenizer = load_tokenizer("dna")
    mixers = {"C": MixerSpec("gated_conv")}
    model = bj.LanguageModel(ModelConfig(tokenizer.vocab_size, 16, "C", mixers, mlp_hidden=16))
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
    """Rows without questions, records of another run, and lengths beyond the model's positions."""
    argv = ["--checkpoint", saved[0], "--out", tmp_path]
    asked = ["--families", "qa", "--questions", tmp_path / "questions.jsonl"]
    message = "questions.jsonl, row 1': expected an object with text, question and answer"
    rows = ('{"text": "a", "question": "b"}', '{"text": "a", "question": "b", "answer": []}', "[]")
    for row in (*rows, r'{"text": "a\ud800", "question": "b", "answer": "c"}'):
        asked[-1].write_text(row)
        assert message in refused(command.PROG, command.main, argv + asked, capsys)
    passages = [{"text": f"{number}" * 9, "question": "b", "answer": "c"} for number in range(19)]
    passages.append({"text": "long" * 400, "question": "b", "answer": "c"})
    asked[-1].write_text("\n".join(map(json.dumps, passages)))
    asked += ["--lengths", "512,1024", "--depths", "1"]
    message = "length = 1024: expected at least 1"  # and none of 512 asks about the long one
    assert message in refused(command.PROG, command.main, argv + asked, capsys)
    (tmp_path / "tiny.jsonl").write_text('{"id": "None/single/300/0.5/0.0", "run": "another"}\n')
    asked = ["--lengths", "300", "--no-parts", "--families", "single"]
    message = "tiny.jsonl': expected a new file or one of this run: of the same model"
    assert message in refused(command.PROG, command.main, argv + asked, capsys)
    model = bj.LanguageModel(CONFIG.replace(max_positions=300))
    bj.save_pretrained(tmp_path / "short", model, normals(model.init, np.zeros((1, 8), np.int32)))
    argv = ["--checkpoint", tmp_path / "short", "--out", tmp_path, "--lengths", "300,400", "--no-parts"]
    message = "lengths = 400: expected at most 300, the model's longest text"
    assert message in refused(command.PROG, command.main, argv, capsys)
