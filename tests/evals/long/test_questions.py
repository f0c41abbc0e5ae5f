"""Questions about long texts: their lengths, answers, depths and seeds, without a model."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from based_jax.data.tokenizers import FileTokenizer, load_tokenizer
from based_jax.evals.long.questions import FAMILIES, VALUES, Material, Passage, Question, make_question
from tests.data import libraries

BYTES = load_tokenizer("byte")
PASSAGES = tuple(
    Passage(f"Town {n} has {n * 7 + 100} boats.", f"Boats of town {n}?", (f"{n * 7 + 100}",))
    for n in range(9)
)
MATERIALS = [
    *(Material(values, passages=PASSAGES) for values in VALUES),
    Material(sentences=(), needles=3, passages=PASSAGES),
    Material(sentences=("One.", "Two and three."), needles=2, passages=PASSAGES),
]


@given(
    st.sampled_from([family for family in FAMILIES if family != "dna"]),
    st.sampled_from(MATERIALS),
    st.integers(1600, 20_000),
    st.floats(0, 1),
    st.text(max_size=3),
)
def test_a_question(family, material, length, depth, seed):
    question = make_question(family, length, depth, seed, BYTES, material)
    used = len(question.tokens(BYTES)) + question.budget(BYTES)
    assert 0.9 * length < used <= length
    text, _, asked = question.prompt.rpartition("\n" if family != "qa" else "\nQuestion")
    assert all(answer in text for answer in question.answers)
    assert not any(answer in asked for answer in question.answers)
    assert question.wrong
    assert not set(question.wrong) & set(question.answers)
    assert len(set(question.wrong)) == len(question.wrong) <= 15
    assert question == make_question(family, length, depth, seed, BYTES, material)
    assert question != make_question(family, length, depth, seed + ".", BYTES, material)


@pytest.mark.parametrize("family", ["single", "multi_key", "qa"])
def test_depths_are_positions_of_the_answer(family):
    for depth in (0.0, 0.3, 1.0):
        material = Material(passages=PASSAGES[:2])
        question = make_question(family, 8000, depth, "seed", BYTES, material)
        text = question.prompt
        assert text.index(question.answers[0]) / len(text) == pytest.approx(depth, abs=0.05)


def test_every_length_and_depth_hides_another_answer():
    points = [(2000, 0.5), (3000, 0.5), (2000, 0.6)]
    answers = {make_question("single", *point, "seed", BYTES).answers for point in points}
    assert len(answers) == 3


def test_needles_of_other_keys_are_wrong_answers():
    question = make_question("multi_key", 2000, 0.5, "seed", BYTES)
    hidden = [answer for answer in question.wrong if answer in question.prompt]
    assert len(hidden) == 3
    assert question.prompt.count("The code of") == 5


def test_all_keys_are_asked_for():
    question = make_question("multi_query", 2000, 0.5, "seed", BYTES)
    asked = question.prompt.rpartition("The code of ")[2].removesuffix(" is").split(", ")
    found = [question.prompt.partition(f"The code of {key} is ")[2][:7] for key in asked]
    assert len(asked) == 4
    assert tuple(found) == question.answers


def test_answers_are_split_into_tokens_as_in_the_text():
    tokenizer = FileTokenizer(libraries.llama().to_str())
    question = make_question("single", 2000, 0.5, "seed", BYTES)
    (answer,) = question.answers
    whole = tokenizer.encode(f"{question.prompt} {answer}").tolist()
    tokens = question.answer_tokens(answer, tokenizer).tolist()
    assert whole == [*tokenizer.encode(question.prompt).tolist(), *tokens]


def test_a_token_across_the_join_leaves_the_answer_whole():
    def encode(text):  # a token for each two letters
        return np.array([hash(text[i : i + 2]) for i in range(0, len(text), 2)])

    pairs = SimpleNamespace(encode=encode)
    question = Question("abc", ("defg",), (), space="")
    assert question.answer_tokens("defg", pairs).tolist() == pairs.encode("defg").tolist()


def test_a_guess_at_several_answers_of_which_any_counts():
    passages = tuple(passage._replace(answers=(*passage.answers, "many")) for passage in PASSAGES)
    question = make_question("qa", 2000, 0.5, "seed", BYTES, Material(passages=passages))
    assert (len(question.answers), len(question.wrong)) == (2, 8)
    assert question.chance == 2 / 10


def test_chains_lead_to_the_value():
    question = make_question("variables", 3000, 0.5, "seed", BYTES)
    value = question.prompt.rpartition("with the value ")[2].split()[0]
    holds = {value}
    for statement in question.prompt.split("Let ")[1:]:
        name, _, before = statement.partition(".")[0].partition(" be ")
        holds |= {name} if before in holds else set()
    assert holds - {value} == set(question.answers)
    assert len(question.answers) == 5


@pytest.mark.parametrize("family", ["common_words", "frequent_words"])
@pytest.mark.parametrize("length", [1600, 9000])
def test_right_words_are_the_most_frequent(family, length):
    question = make_question(family, length, 0.5, "seed", BYTES)
    times = Counter(question.prompt.split("\n")[1].split())
    count = len(question.answers)
    assert {word for word, _ in times.most_common(count)} == set(question.answers)
    (*_, last), following = times.most_common(count), times.most_common(count + 1)[-1]
    assert last[1] > following[1]


@pytest.mark.parametrize("name", ["byte", "dna"])
@pytest.mark.parametrize("genome", [None, ("AAAAcccc", "GGTT")])
def test_dna_hides_a_value_after_its_key(name, genome):
    material = Material(needles=3) if genome is None else Material(sentences=genome, needles=3)
    given = "dna", 2000, 0.25, "seed", load_tokenizer(name), material
    question = make_question(*given)
    assert question == make_question(*given)
    used = len(question.tokens(given[4])) + question.budget(given[4])
    assert 0.98 * 2000 < used <= 2000
    text, (answer,) = question.prompt, question.answers
    key = text[-16:]
    assert set(text) == set("ACGT")
    assert text.count(key) == 2
    assert text.count(answer) == text.count(key + answer) == 1
    assert text.index(answer) / len(text) == pytest.approx(0.25, abs=0.03)
    assert sum(wrong in text for wrong in question.wrong) == 2
    assert len({answer, *question.wrong}) == 16
    assert genome is None or "AAAACCCCGGTT" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "simple"}, "family = 'simple'.*single"),
        ({"length": 100}, "length = 100: expected at least"),
        ({"depth": 1.5}, "depth = 1.5"),
        ({"family": "qa"}, "0 different texts': expected at least 2"),
    ],
)
def test_bad_input(change, message):
    call = {"family": "single", "length": 1000, "depth": 0.5, "seed": "", "tokenizer": BYTES}
    with pytest.raises(ValueError, match=message):
        make_question(**(call | change))
