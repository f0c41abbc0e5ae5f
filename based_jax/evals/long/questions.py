"""Make questions about long texts, without a download: the families of RULER (2404.06654, section 3).

    single          a needle, "The code of KEY is VALUE.", between other sentences
    multi_key       needles with other keys, too
    multi_value     several needles with one key: all their values count
    multi_query     several keys are asked for
    variables       names that pass on a value, in chains: all names with this value count
    common_words    a list of words: the ten that occur most often count
    frequent_words  words of frequencies like 1 / rank^2: the three most frequent count
    qa              your own questions: passages of other questions surround the one with the answer
    dna             keys of 16 bases, each followed by its value, of 16, between other bases

The sentences are this library's own, so accuracies are not those of RULER's data (lm-eval has these). Every
question comes with wrong answers of the same kind: a model is also scored by the rank of the right answer's
log-probability among them, without having to write it.
"""

import dataclasses
import functools
import math
import random
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from based_jax.data.tokenizers import Tokenizer, text_start
from based_jax.validate import INT32_MAX, expect, expect_choice

WRONG = 15
"""Number of wrong answers that a right one is compared with; fewer where a text has no more."""

VALUES = ("numbers", "words", "uuids")

_NOISE = (
    "The wind turned in the afternoon.",
    "A door was left open somewhere.",
    "Nobody had counted the boats yet.",
    "Rain fell on the roofs of the town.",
    "The road follows the river for a while.",
    "Two lamps were still burning.",
)
_SYLLABLES = ("ba", "do", "fi", "ka", "lu", "me", "no", "pi", "ra", "so", "tu", "ve")
_HOPS, _CHAINS = 4, 4
_COMMON, _COMMON_TIMES, _RARE_TIMES = 10, 12, 2
_FREQUENT, _FEWEST_WORDS = 3, 40  # with fewer words, the third and the fourth are equally frequent
_CLOSE = 0.99  # of the length: enough
_SLACK = 16  # tokens of an answer besides its values
_TAIL = 64  # characters of a prompt that decide how an answer is split into tokens
_CORRECTIONS = 16  # of the size of a text, before it is found by halving
_MOTIF = 16  # bases: a text of N bases has a random one by chance with probability N / 4^16


class Passage(NamedTuple):
    """A text with a question about it."""

    text: str
    question: str
    answers: tuple[str, ...]
    """any of them is right"""


@dataclasses.dataclass(frozen=True)
class Material:
    """What questions are made of."""

    values: str = "numbers"
    """of needles: numbers of seven digits, made-up words, or UUIDs"""
    sentences: Sequence[str] = _NOISE
    """the text around needles, in this order from a random one on; if empty, more needles. For dna sequences
    of bases; by default and if empty, random ones"""
    needles: int = 4
    """keys of multi_key and dna, values of multi_value, keys that multi_query asks for"""
    passages: Sequence[Passage] = ()
    """of qa"""

    def __post_init__(self) -> None:
        expect_choice("values", self.values, VALUES)
        expect(self.needles >= 2, "needles", self.needles, "at least 2")


class Question(NamedTuple):
    """A prompt, and what may follow it."""

    prompt: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...]
    is_any_enough: bool = False
    """whether one of the answers is enough, instead of all"""
    space: str = " "
    """between the prompt and what follows"""

    def tokens(self, tokenizer: Tokenizer) -> np.ndarray:
        """Return the prompt's tokens after the one that starts a text."""
        return np.array([text_start(tokenizer), *tokenizer.encode(self.prompt)], np.int32)

    def answer_tokens(self, text: str, tokenizer: Tokenizer) -> np.ndarray:
        """Return the tokens of an answer after the prompt, which may differ from those of it alone."""
        before = self.prompt[-_TAIL:]
        own, both = tokenizer.encode(before), tokenizer.encode(before + self.space + text)
        follows = np.array_equal(both[: len(own)], own)  # no token has parts of both
        return both[len(own) :] if follows else tokenizer.encode(self.space + text)

    @property
    def chance(self) -> float:
        """Return the expected share of right answers that are ahead of all wrong ones by a guess."""
        right = len(self.answers) if self.is_any_enough else 1
        return right / (right + len(self.wrong))

    def budget(self, tokenizer: Tokenizer) -> int:
        """Return how many tokens an answer may have."""
        return len(tokenizer.encode(", ".join(self.answers))) + _SLACK


def make_question(
    family: str,
    length: int,
    depth: float,
    seed: str,
    tokenizer: Tokenizer,
    material: Material | None = None,
    *,
    is_shortest: bool = False,
) -> Question:
    """Make a question of at most `length` tokens, the budget of its answer included, and nearly as many.

    Args:
        family: one of `FAMILIES`.
        depth: position of the first needle, or of the passage with the answer, as a share of the text before
            it: from 0 to 1. `variables` and the families of words ignore it.
        seed: equal seeds give equal questions, of other lengths and depths with other answers.
        is_shortest: make the shortest text instead, to know whether one fits.

    Raises:
        ValueError: an unknown family, a length that is too short for it, or `qa` without two passages.
    """
    expect_choice("family", family, tuple(FAMILIES))
    expect(0 <= depth <= 1, "depth", depth, "from 0 to 1")
    make = functools.partial(FAMILIES[family], depth=depth, material=material or Material())

    def build(size: int) -> tuple[Question, int]:
        question = make(random.Random(f"{family} {length} {depth} {seed}"), size)
        return question, len(question.tokens(tokenizer)) + question.budget(tokenizer)

    best, least = build(1)
    expect(least <= length, "length", length, f"at least {least}, the shortest text of {family}")
    if is_shortest:
        return best
    # A sentence or word adds nearly the same number of tokens, so a few corrections come close to `length`.
    low, high, size, corrections = 1, INT32_MAX, 64, 0
    while high - low > 1:
        question, used = build(size)
        corrections += 1
        if used <= length:
            best, low = question, size
            if used > _CLOSE * length:
                break
        else:
            high = size
        each = max((used - least) / (size - 1), 1)
        size += round((length - used) / each)
        if corrections >= _CORRECTIONS and high < INT32_MAX:
            size = (low + high) // 2
        size = min(max(size, low + 1), high - 1)
    return best


def _words(rng: random.Random, count: int, size: int = 3, syllables: Sequence[str] = _SYLLABLES) -> list[str]:
    """Draw different made-up words of `size` syllables, or of more if there are not enough."""
    while len(syllables) ** size < 8 * count:
        size += 1
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(syllables, k=size))] = None
    return list(found)


def _values(rng: random.Random, count: int, kind: str) -> list[str]:
    if kind == "uuids":
        return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(count)]
    if kind == "words":
        return _words(rng, count, 4)
    return [str(number) for number in rng.sample(range(10**6, 10**7), count)]


def _surrounded(
    rng: random.Random,
    size: int,
    lines: Sequence[str],
    hidden: Sequence[str],
    positions: Sequence[int],
    space: str = " ",
) -> str:
    """Return `size` of the lines, from a random one on, with hidden lines before these positions."""
    begin = rng.randrange(len(lines))
    text = [lines[(begin + index) % len(lines)] for index in range(size)]
    for index in sorted(range(len(hidden)), key=lambda index: (positions[index], index), reverse=True):
        text.insert(positions[index], hidden[index])
    return space.join(text)


def _anywhere(rng: random.Random, size: int, count: int) -> list[int]:
    return [rng.randint(0, size) for _ in range(count)]


def _needles(
    rng: random.Random,
    size: int,
    depth: float,
    material: Material,
    *,
    keys: bool = False,
    values: bool = False,
    asks: bool = False,
) -> Question:
    """Ask for needles: several with other keys, or with one key, or ask for several."""
    names = _words(rng, material.needles if keys else 1)
    codes = _values(rng, material.needles + WRONG, material.values)
    count = material.needles if values or asks else 1
    pairs = [(names[index % len(names)], codes[index]) for index in range(max(count, len(names)))]
    lines = list(material.sentences)
    if not lines:
        others = zip(_words(rng, size, 5), _values(rng, size, material.values), strict=True)
        lines = [_needle(*pair) for pair in others]
    positions = [round(depth * size), *_anywhere(rng, size, len(pairs) - 1)]
    text = _surrounded(rng, size, lines, [_needle(*pair) for pair in pairs], positions)
    asked = ", ".join(names if asks else names[:1])
    prompt = f"Some codes are hidden in this text. Remember them.\n{text}\nThe code of {asked} is"
    return Question(prompt, tuple(codes[:count]), tuple(codes[count : count + WRONG]))


def _needle(key: str, value: str) -> str:
    return f"The code of {key} is {value}."


def _variables(rng: random.Random, size: int, depth: float, material: Material) -> Question:
    names = [word.upper() for word in _words(rng, _CHAINS * (_HOPS + 1), 2)]
    chains = [names[index::_CHAINS] for index in range(_CHAINS)]
    values = _values(rng, _CHAINS, "numbers")
    statements = [
        f"Let {name} be {before}."
        for chain, value in zip(chains, values, strict=True)
        for before, name in zip((value, *chain[:-1]), chain, strict=True)
    ]
    # Chains are shuffled together, each in its own order.
    turns = rng.sample([index for index in range(_CHAINS) for _ in range(_HOPS + 1)], len(names))
    left = [statements[index * (_HOPS + 1) :] for index in range(_CHAINS)]
    hidden = [left[index].pop(0) for index in turns]
    positions = sorted(_anywhere(rng, size, len(hidden)))
    text = _surrounded(rng, size, material.sentences or _NOISE, hidden, positions)
    prompt = (
        f"Names get values in this text. Remember them.\n{text}\nThe names with the value {values[0]} are"
    )
    wrong = [name for chain in chains[1:] for name in chain]
    return Question(prompt, tuple(chains[0]), tuple(wrong[:WRONG]))


def _common_words(rng: random.Random, size: int, depth: float, material: Material) -> Question:
    words = _words(rng, _COMMON + size, 5)
    common, rare = words[:_COMMON], words[_COMMON:]
    listed = [*common * _COMMON_TIMES, *rare * _RARE_TIMES]
    rng.shuffle(listed)
    return _about_words(listed, common, rare, f"The {_COMMON} words that occur most often are")


def _frequent_words(rng: random.Random, size: int, depth: float, material: Material) -> Question:
    size = max(size, _FEWEST_WORDS)
    scale = size * 6 / math.pi**2  # the sum of 1 / rank^2 is pi^2 / 6
    times = [max(int(scale / rank**2), 1) for rank in range(1, WRONG + _FREQUENT + 1)]
    words = _words(rng, len(times))
    listed = [word for word, count in zip(words, times, strict=True) for _ in range(count)]
    rng.shuffle(listed)
    asked = f"The {_FREQUENT} most frequent words are"
    return _about_words(listed, words[:_FREQUENT], words[_FREQUENT:], asked)


def _about_words(listed: list[str], right: list[str], wrong: list[str], asked: str) -> Question:
    prompt = f"Count how often each word occurs.\n{' '.join(listed)}\n{asked}"
    return Question(prompt, tuple(right), tuple(wrong[:WRONG]))


def _qa(rng: random.Random, size: int, depth: float, material: Material) -> Question:
    passages = material.passages
    texts = {passage.text for passage in passages}
    expect(len(texts) >= 2, "passages", f"{len(texts)} different texts", "at least 2, for qa")
    asked = rng.choice(passages)
    others = [passage for passage in passages if passage.text != asked.text]
    rng.shuffle(others)
    lines = [passage.text for passage in others]
    text = _surrounded(rng, size, lines, [asked.text], [round(depth * size)])
    wrong = dict.fromkeys(passage.answers[0] for passage in others)
    right = {answer.casefold() for answer in asked.answers}
    wrong = [answer for answer in wrong if answer.casefold() not in right]
    prompt = f"Answer the question after the text.\n{text}\nQuestion: {asked.question}\nAnswer:"
    return Question(prompt, asked.answers, tuple(wrong[:WRONG]), is_any_enough=True)


def _dna(rng: random.Random, size: int, depth: float, material: Material) -> Question:
    """Ask for the value of the first of several keys, which are all in the text."""
    count = material.needles
    keys = _words(rng, count, _MOTIF, "ACGT")
    values = _words(rng, count + WRONG, _MOTIF, "ACGT")
    is_random = material.sentences in ((), _NOISE)
    bases = "".join(rng.choices("ACGT", k=size) if is_random else material.sentences).upper()
    positions = [round(depth * size), *_anywhere(rng, size, count - 1)]
    hidden = [key + value for key, value in zip(keys, values, strict=False)]
    text = _surrounded(rng, size, bases, hidden, positions, "")
    return Question(text + keys[0], (values[0],), tuple(values[1 : 1 + WRONG]), space="")


FAMILIES: dict[str, Callable[..., Question]] = {
    "single": _needles,
    "multi_key": functools.partial(_needles, keys=True),
    "multi_value": functools.partial(_needles, values=True),
    "multi_query": functools.partial(_needles, keys=True, asks=True),
    "variables": _variables,
    "common_words": _common_words,
    "frequent_words": _frequent_words,
    "qa": _qa,
    "dna": _dna,
}
"""Name -> function of a generator, a size (sentences, words, passages or bases), `depth` and `material`."""
