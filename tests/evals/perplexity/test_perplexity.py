"""Scoring streams with a model, the records on disk and the command."""

import dataclasses
import itertools
import json
import sys

import jax
import numpy as np
import pytest

from based_jax.convert import save_pretrained
from based_jax.data import ByteTokenizer, Document, PackedTokens
from based_jax.evals.bigrams.table import BigramTable
from based_jax.evals.perplexity import __main__ as perplexity
from based_jax.evals.perplexity.records import make_records, read_records, write_records
from based_jax.evals.perplexity.scoring import Scores, score_documents, score_windows
from based_jax.models.config import MixerSpec, ModelConfig
from based_jax.models.language_model import LanguageModel
from tests.commands import run_here
from tests.generate.tiny import random_params

TEXTS = ["abab <b>abab</b> & na\u00efve\nabab", "a", "banana banana banana banana banana"]
LENGTH = 12


@pytest.fixture(scope="module")
def model():
    mixers = {"A": MixerSpec("attention", {"num_heads": 2})}
    made = LanguageModel(
        ModelConfig(257, d_model=8, schedule="A", mixers=mixers, mlp_hidden=8, max_length=LENGTH)
    )
    return made, random_params(made)


@pytest.fixture(scope="module")
def packed() -> PackedTokens:
    return PackedTokens.from_documents([Document("", text) for text in TEXTS], ByteTokenizer())


@pytest.fixture(scope="module")
def forward(model):
    """log p (B, N, vocabulary) of rows of any length up to 64, by the definition."""
    apply = jax.jit(lambda params, tokens: jax.nn.log_softmax(model[0].apply(params, tokens)[0]))

    def get(tokens: np.ndarray) -> np.ndarray:
        return np.asarray(apply(model[1], np.pad(tokens, (0, 64 - tokens.size))[None])[0])

    return get


def by_definition(packed: PackedTokens, forward, rows: list[tuple[int, int]]) -> Scores:
    """Scores where the targets after inputs begin ... end of each row are read as one text."""
    scores = Scores.empty(len(packed) - 1)
    for begin, end in rows:
        log_p = forward(packed.as_inputs(packed.tokens[begin:end].astype(np.int32)))[: end - begin]
        scores.loss[begin:end] = -np.take_along_axis(
            log_p, packed.tokens[begin + 1 : end + 1, None].astype(int), 1
        )[:, 0]
        scores.predicted[begin:end] = log_p[:, :257].argmax(axis=1)
        scores.predicted_loss[begin:end] = -log_p[:, :257].max(axis=1)
    return scores


def windows(packed: PackedTokens, cross_documents: bool, stride: int = LENGTH) -> list[tuple[int, int]]:
    """Rows of the windows, the last first: what several windows contain is set by the first."""
    rows, size = [], len(packed) - 1
    for begin in reversed(range(0, size, stride)):
        end = min(begin + LENGTH, size)
        starts = [start for start in packed.starts if begin < start < end and not cross_documents]
        rows += itertools.pairwise([begin, *starts, end])
    return rows


def assert_same(scores: Scores, expected: Scores) -> None:
    np.testing.assert_allclose(scores.loss, expected.loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(scores.predicted, expected.predicted)
    np.testing.assert_allclose(scores.predicted_loss, expected.predicted_loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("batch_size", "cross_documents", "stride"),
    [
        (2, False, None),
        (2, True, None),
        pytest.param(3, False, None, marks=pytest.mark.slow),
        (2, False, 5),
        pytest.param(2, True, 5, marks=pytest.mark.slow),
        pytest.param(2, True, 1, marks=pytest.mark.slow),
        (2, False, LENGTH),
    ],
)
def test_windows_have_the_losses_of_each_window_alone(
    model, packed, forward, batch_size, cross_documents, stride
):
    done, options = [], {"batch_size": batch_size, "cross_documents": cross_documents, "stride": stride}
    scores = score_windows(*model, packed, length=LENGTH, advance=done.append, **options)
    assert sum(done) == len(packed) - 1
    assert_same(scores, by_definition(packed, forward, windows(packed, cross_documents, stride or LENGTH)))


@pytest.mark.parametrize("stride", [0, LENGTH + 1])
def test_strides_beyond_a_window_are_refused(model, packed, stride):
    with pytest.raises(ValueError, match=rf"stride = {stride}: expected from 1 to {LENGTH}, the length"):
        score_windows(*model, packed, length=LENGTH, batch_size=2, stride=stride)


@pytest.mark.parametrize("start", [pytest.param(None, marks=pytest.mark.slow), 65])
def test_documents_have_the_losses_of_each_document_read_at_once(model, packed, forward, start):
    packed = dataclasses.replace(packed, start=start)
    ends = [*packed.starts.tolist(), len(packed) - 1]
    expected = by_definition(packed, forward, list(itertools.pairwise(ends)))
    assert_same(score_documents(*model, packed, length=LENGTH, batch_size=2), expected)


def test_an_interrupted_scoring_keeps_what_it_reached(model, packed):
    whole = score_windows(*model, packed, length=LENGTH, batch_size=2)
    half = score_windows(*model, packed, length=LENGTH, batch_size=2, interrupted=lambda: True)
    records = make_records(packed, half, LENGTH, False, {"num_bytes": 9}).reached()
    np.testing.assert_array_equal(records.loss, whole.loss[: 2 * LENGTH])
    assert records.info["num_bytes"] is None


def test_models_that_have_no_perplexity_are_refused(packed):
    mixers = {"X": MixerSpec("nystrom", {"causal": False})}
    whole = ModelConfig(257, d_model=8, schedule="X", mixers=mixers, mlp_hidden=8)
    for score in (score_windows, score_documents):
        with pytest.raises(ValueError, match=r"checkpoint = 'layer 0, nystrom': expected causal"):
            score(LanguageModel(whole), None, packed, length=LENGTH, batch_size=2)
    small = ModelConfig(100, d_model=8, schedule="A", mixers={"A": MixerSpec("attention")}, mlp_hidden=8)
    with pytest.raises(ValueError, match="tokenizer = 'token 256': expected tokens below 100"):
        score_windows(LanguageModel(small), None, packed, length=LENGTH, batch_size=2)


@pytest.fixture(scope="module")
def records(model, packed):
    scores = score_windows(*model, packed, length=LENGTH, batch_size=2, stride=5)
    made = make_records(packed, scores, LENGTH, False, {"tokenizer": "byte"}, 5)
    return made.with_counts(BigramTable.of_stream(packed.tokens, 257, "itself"))


def test_records_come_back_from_parquet(records, tmp_path):
    path = tmp_path / "records.parquet"
    for written in (records, dataclasses.replace(records, count=None)):
        write_records(path, written)
        read = read_records(path)
        for field in dataclasses.fields(written):
            expected, found = getattr(written, field.name), getattr(read, field.name)
            assert getattr(expected, "dtype", None) == getattr(found, "dtype", None)
            np.testing.assert_equal(found, expected)
    assert [file.name for file in tmp_path.iterdir()] == ["records.parquet"]
    path.write_bytes(b"PAR1 or not")
    with pytest.raises(ValueError, match="expected a Parquet file"):
        read_records(path)


def test_without_pyarrow_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'based-jax\[eval\]'"):
        read_records(tmp_path / "records.parquet")


@pytest.fixture(scope="module")
def files(model, packed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    save_pretrained(folder / "model", *model)
    ByteTokenizer().save(folder / "model")
    lines = [json.dumps({"text": text}) for text in TEXTS]
    (folder / "text.jsonl").write_text("\n".join(lines))
    BigramTable.of_stream(packed.tokens, 257, "itself").save(folder / "counts")
    BigramTable.of_stream(np.array([1, 2]), 9).save(folder / "others")
    return folder


def test_the_command_and_its_recomputation_agree(files, records, capsys):
    made, again = files / "a.parquet", files / "new" / "b.parquet"
    options = ("--batch-size", 2, "--counts", files / "counts", "--max-count", 8, "--stride", 5)
    first = ("--checkpoint", files / "model", "--reference", files / "model", "--data", files / "text.jsonl")
    outputs = ("--records", made, "--json", files / "a.json")

    def printed_by(*argv):
        ended = run_here(perplexity.PROG, perplexity.main, argv, capsys)
        assert ended.status == 0, ended.err
        return ended.out

    printed = printed_by(*first, *options, *outputs)
    np.testing.assert_array_equal(read_records(made).loss, records.loss)
    result = json.loads((files / "a.json").read_text())
    hits = (records.distance > 0) & (records.count <= 8)
    assert result["slices"]["hits"]["tokens"] == hits.sum() > 0
    assert result["slices"]["hits"]["loss"] == pytest.approx(records.loss[hits].mean(dtype=float), rel=1e-12)
    # Of 68 targets the first window scores 12, eleven their last 5, at positions 7 to 11, and the last one 1.
    found = [(entry["high"], entry["all"]["tokens"]) for entry in result["positions"]]
    assert found == [(0, 1), (1, 1), (3, 2), (7, 4 + 12), (15, 4 + 44)]
    assert result["gap_explained"] is None
    assert "no gap: the model is not worse" in printed

    recompute = ("--checkpoint", made, "--reference", made, "--max-count", 8)
    assert printed_by(*recompute, "--json", files / "b.json", "--records", again) == printed
    recomputed = json.loads((files / "b.json").read_text())
    del recomputed["reference"]["info"], result["reference"]["info"]  # one has the counts of its file
    assert recomputed == result
    assert again.read_bytes() == made.read_bytes()


def test_a_reference_on_other_tokens_is_an_error_before_the_work(files, records, capsys, monkeypatch):
    monkeypatch.setattr(perplexity, "score_windows", None)
    write_records(files / "reference.parquet", records)
    words = ("--checkpoint", files / "model", "--data", files / "text.jsonl", "--stride", "4")
    words = (*words, "--reference", files / "reference.parquet")
    ended = run_here(perplexity.PROG, perplexity.main, words, capsys)
    assert ended.status == 2
    assert "reference = 'records of 68 tokens': expected the model's 68 tokens in" in ended.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "data = None: expected the text to evaluate on"),
        (("--data", "nowhere"), "there is no such path"),
        (("--data", "text.jsonl", "--counts", "text.jsonl"), "expected a count file of bigrams"),
        (("--data", "text.jsonl", "--counts", "others"), "a vocabulary of 9': expected the tokenizer's 257"),
        (("--data", "text.jsonl", "--records", "a.csv"), "a name that ends in .parquet"),
        (("--data", "text.jsonl", "--json", "text.jsonl/a"), "a file that can be written"),
        (("--data", "text.jsonl", "--reference", "none.parquet"), "expected a Parquet file of records"),
        (("--data", "text.jsonl", "--batch-size", "0"), "batch_size = 0"),
        (("--data", "text.jsonl", "--context", "line"), "--context"),
        (("--data", "text.jsonl", "--stride", "0"), "stride = 0: expected at least 1"),
        (("--data", "text.jsonl", "--stride", "13"), "stride = 13: expected at most 12, the length"),
        (("--data", "text.jsonl", "--stride", "4", "--context", "document"), "stride = 4: expected none"),
        (("--checkpoint", "a.parquet", "--stride", "4"), "stride = 4: expected none"),
        (("--checkpoint", "a.parquet", "--max-tokens", "9"), "max_tokens = 9: expected 16000000, as"),
    ],
)
def test_a_wrong_flag_is_one_line(files, flags, message, capsys, monkeypatch):
    monkeypatch.chdir(files)
    ended = run_here(perplexity.PROG, perplexity.main, ("--checkpoint", "model", *flags), capsys)
    assert ended.status == 2
    assert message in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err
