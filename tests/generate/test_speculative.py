"""Speculation makes the target's tokens: the same when greedy, of the same distribution when sampled."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from based_jax.generate import generate
from based_jax.generate.speculative import check, early_exit, speculate
from based_jax.models.config import ModelConfig
from based_jax.models.language_model import LanguageModel
from tests.generate.tiny import MIXERS, make_tiny, random_params

STEPS = 14
NEVER = (0, 48)
"""tokens that the model does not make here"""
DRAFTS = 5  # more than the window of 4 keys and the convolution of 4 taps hold
PROMPTS = [[7], [3, 1], [4, 4, 9, 0, 2, 30, 49, 8], list(range(3, 45, 2))]


# One model, one number of rows, of drafts and of stop tokens: all of these tests run one program. Its choices
# are never so close that float32 would turn them.


@pytest.fixture(scope="module")
def simple():
    """A cache, a ring and a tail; learned positions that end with the last token: beyond them is NaN."""
    return make_tiny("SAC", max_positions=max(map(len, PROMPTS)) + STEPS - 1)


@pytest.fixture(scope="module")
def stranger(simple):
    """Other weights: it is hardly ever right."""
    noise = np.random.default_rng(5)
    return jax.tree.map(lambda leaf: leaf + noise.normal(size=leaf.shape), simple.params)


@pytest.fixture(scope="module")
def expected(simple):
    tokens = np.asarray(generate(simple.model, simple.params, PROMPTS, STEPS))
    assert not set(NEVER) & set(tokens.flat), sorted(set(range(50)) - set(tokens.flat))
    return tokens


def run(simple, draft_params, steps=STEPS, prompts=PROMPTS, stop_tokens=NEVER, **options):
    return speculate(
        simple.model,
        simple.params,
        simple.model,
        draft_params,
        prompts,
        steps,
        draft_tokens=DRAFTS,
        stop_tokens=stop_tokens,
        pad_token=-1,
        **options,
    )


def test_a_draft_that_is_the_model_is_always_right(simple, expected):
    found = run(simple, simple.params)
    assert found.tokens.tolist() == expected.tolist()
    rounds = -(-STEPS // (DRAFTS + 1))
    assert found.rounds.tolist() == [rounds] * len(PROMPTS)
    assert found.accepted.tolist() == [STEPS - rounds] * len(PROMPTS)


def test_a_stranger_costs_rounds_but_changes_nothing(simple, stranger, expected):
    found = run(simple, stranger)
    assert found.tokens.tolist() == expected.tolist()
    assert (found.rounds > STEPS // 2).all()


PENALTIES = {
    "repetition_penalty": [1.0, 1.4, 3.0, 1.0],
    "presence_penalty": [0.0, 1.5, 0.0, 0.0],
    "frequency_penalty": [0.0, 0.7, 0.0, 2.0],
    "logit_bias": [None, {3: 2.0}, None, {7: -100, 8: 1.0}],
}


def test_penalties_and_biases_are_those_of_generate(simple, stranger, expected):
    """Of the text before each token, drafts of the same round included, by rows."""
    penalised = np.asarray(generate(simple.model, simple.params, PROMPTS, STEPS, **PENALTIES))
    assert penalised[0].tolist() == expected[0].tolist()
    assert (penalised[1:] != expected[1:]).any(axis=1).all(), "the case is too easy"
    for draft, rounds in ((simple.params, (3, 3)), (stranger, (4, STEPS))):
        found = run(simple, draft, stop_tokens=(), **PENALTIES)
        assert found.tokens.tolist() == penalised.tolist()
        assert ((found.rounds >= rounds[0]) & (found.rounds <= rounds[1])).all(), found.rounds


def test_rows_stop_by_themselves(simple, stranger, expected):
    stops = (expected[0, 3], expected[2, 0])
    made = [next((i + 1 for i, token in enumerate(row) if token in stops), STEPS) for row in expected]
    assert len(set(made)) > 2, "the case is too easy"
    for draft in (simple.params, stranger):
        found = run(simple, draft, stop_tokens=stops)
        for row, count in enumerate(made):
            assert found.tokens[row].tolist() == [*expected[row, :count].tolist(), *[-1] * (STEPS - count)]
        # A round ends with a token of the target's own, unless a draft ends the row.
        assert set((found.rounds + found.accepted - np.array(made)).tolist()) <= {0, 1}


def test_fewer_tokens_than_drafts(simple, stranger, expected):
    for draft, count in itertools.product((simple.params, stranger), (1, 2)):
        assert run(simple, draft, count).tokens.tolist() == expected[:, :count].tolist()


def test_positions_end_with_the_last_token(simple):
    with pytest.raises(ValueError, match=r"^max_new_tokens = 15: expected at most 34 = max_positions of"):
        run(simple, simple.params, STEPS + 1)


def test_a_row_depends_on_its_own_key_and_settings_only(simple, stranger, expected):
    keys = jax.random.split(jax.random.key(5), len(PROMPTS))
    together = run(
        simple, stranger, rng=keys, temperature=[0.8, 0, 1.2, 0.5], top_k=[None, None, 20, 9], top_p=0.95
    )
    assert together.tokens[1].tolist() == expected[1].tolist()
    others = [[9, 9, 9], PROMPTS[2], [1], PROMPTS[0]]
    moved = run(
        simple,
        stranger,
        prompts=others,
        rng=keys[jnp.array([1, 2, 3, 0])],
        temperature=[1, 1.2, 0.1, 0.8],
        top_k=[3, 20, None, None],
        top_p=[0.2, 0.95, None, 0.95],
    )
    assert moved.tokens[1].tolist() == together.tokens[2].tolist()
    assert moved.tokens[3].tolist() == together.tokens[0].tolist()


def test_check_makes_the_targets_distribution():
    """Every acceptance threshold and the distribution after it, against the definition: sums, no samples."""
    generator = np.random.default_rng(0)
    vocab, proposed = 6, 3
    target = generator.dirichlet(np.ones(vocab), size=proposed + 1)
    draft = generator.dirichlet(np.ones(vocab), size=proposed)
    target[:, 1], draft[:, 2] = 0, 0  # tokens that only one of them makes
    target, draft = (side / side.sum(axis=1, keepdims=True) for side in (target, draft))
    grid = (np.arange(1000) + 0.5) / 1000

    checked = jax.jit(jax.vmap(check, (None, None, 0, None, 0)))
    rows = target[None], draft[None]
    for position in range(proposed):
        # Drafts before `position` are accepted, the one at `position` is any token at any u.
        front = target[:position].argmax(axis=1)
        drafts = [[[*front, token, *[0] * (proposed - position - 1)]] for token in range(vocab) for _ in grid]
        uniform = np.zeros((len(drafts), 1, proposed))
        uniform[:, 0, position:] = np.tile(grid, vocab)[:, None]
        accepted, rest = checked(*rows, np.array(drafts), np.array([position + 1]), uniform)
        taken = (np.asarray(accepted) > position).reshape(vocab, -1).mean(axis=1)
        np.testing.assert_allclose(
            taken, np.minimum(1, target[position] / np.maximum(draft[position], 1e-9)), atol=1 / 1000
        )
        refused = np.asarray(rest)[np.asarray(accepted)[:, 0] == position][0, 0]
        made = draft[position] * taken + (draft[position] * (1 - taken)).sum() * refused / refused.sum()
        np.testing.assert_allclose(made, target[position], atol=2 / 1000)  # the grid's spacing, twice
        after = np.asarray(rest)[np.asarray(accepted)[:, 0] == position + 1][0, 0]
        np.testing.assert_allclose(after, target[position + 1], rtol=1e-6)


def test_check_allows_no_more_than_it_may():
    equal = np.full((1, 3, 4), 0.25, np.float32)
    for allowed in range(3):
        accepted, rest = check(
            equal, equal[:, :2], np.zeros((1, 2), int), np.array([allowed]), np.zeros((1, 2))
        )
        assert accepted.tolist() == [allowed]
        np.testing.assert_array_equal(rest, equal[:, 0])


@pytest.mark.release
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 3, "temperature": 0.7},
        {"frequency_penalty": 0.8, "repetition_penalty": 1.3, "logit_bias": {1: 0.5}},
    ],
    ids=str,
)
def test_samples_have_the_targets_distribution(options):
    """All texts of three tokens, counted over many rows, against their exact probabilities.

    A chi-square statistic of the right distribution exceeds its bound once in a million sets of keys, and the
    keys are fixed.
    """
    vocab, length, rows = 4, 3, 3000
    config = ModelConfig(vocab, 8, "CC", {"C": MIXERS["C"]}, 8)
    model = LanguageModel(config)
    params = random_params(model)
    draft = early_exit(model, params, 1)
    settings = {"temperature": 1.0, **options}
    found = speculate(
        model, params, *draft, [[2]] * rows, length, rng=jax.random.key(0), draft_tokens=2, **settings
    )
    texts = np.array(list(itertools.product(range(vocab), repeat=length)))
    prompt = np.full((len(texts), 1), 2)
    logits, _ = jax.jit(model.apply)(params, np.concatenate([prompt, texts], axis=1))
    scores = penalised(np.asarray(logits)[:, :-1, :vocab], prompt, texts, options) / settings["temperature"]
    if "top_k" in settings:
        scores = np.where(scores >= np.sort(scores)[..., [-settings["top_k"]]], scores, -np.inf)
    each = np.take_along_axis(np.asarray(jax.nn.softmax(scores)), texts[..., None], axis=2)[..., 0]
    expected = rows * each.prod(axis=1)
    assert expected.sum() == pytest.approx(rows, rel=1e-4)
    counts = np.bincount(np.asarray(found.tokens) @ [16, 4, 1], minlength=len(texts))
    assert counts[expected == 0].sum() == 0
    # Texts of few expected counts go together: the statistic's distribution needs about 5 per class.
    common = expected >= 5
    classes = [(counts[common], expected[common]), (counts[~common].sum(), expected[~common].sum())]
    observed, hoped = (np.append(*side) for side in zip(*classes, strict=True))
    observed, hoped = observed[hoped > 0], hoped[hoped > 0]
    statistic = ((observed - hoped) ** 2 / hoped).sum()
    assert len(hoped) > 10, "the case is too easy"
    assert statistic < stats.chi2.ppf(1 - 1e-6, len(hoped) - 1)
    accepted = int(found.accepted.sum()) / int((found.accepted + found.rounds).sum())
    assert 0.1 < accepted < 0.6, "the draft is refused at times, and at times not"


def penalised(logits, prompt, texts, options) -> np.ndarray:
    """Logits (texts, tokens, vocab) before each token of the texts, by the definition."""
    scores = logits.copy()
    for token, bias in options.get("logit_bias", {}).items():
        scores[..., token] += bias
    repetition = options.get("repetition_penalty", 1)
    for row, text in enumerate(texts):
        for position in range(len(text)):
            made = np.bincount(text[:position], minlength=logits.shape[-1])
            known = made + np.bincount(prompt[row], minlength=logits.shape[-1]) > 0
            own = scores[row, position]
            own[known] = np.where(own > 0, own / repetition, own * repetition)[known]
            own -= options.get("frequency_penalty", 0) * made
    return scores


def test_early_exit_shares_the_arrays(hybrid):
    model, params = early_exit(hybrid.model, hybrid.params, 2)
    assert model.config.schedule == "CL"
    own = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1), jnp.int32))
    assert jax.tree.structure(own) == jax.tree.structure(params)
    theirs = {id(leaf) for leaf in jax.tree.leaves(hybrid.params)}
    assert all(id(leaf) in theirs for leaf in jax.tree.leaves(params))
    for layers in (0, 5):
        with pytest.raises(ValueError, match=rf"^layers = {layers}: expected an integer, from 1 to 4"):
            early_exit(hybrid.model, hybrid.params, layers)


def test_errors(simple):
    for options, message in [
        ({"draft_tokens": 0}, r"^draft_tokens = 0: expected an integer, at least 1"),
        ({"max_new_tokens": 0}, r"^max_new_tokens = 0: expected an integer, at least 1"),
        ({"temperature": 1.0}, r"^rng = None: expected jax.random.key\(seed\) when temperature > 0"),
        ({"temperature": -1.0}, r"^temperature = -1.0: expected"),
        ({"stop_tokens": (50,)}, r"^stop_tokens = 50: expected tokens in \[0, 50\)"),
        ({"prompt": [[]]}, r"^prompt = 'row 0': expected at least one token"),
    ]:
        models = simple.model, simple.params, simple.model, simple.params
        with pytest.raises(ValueError, match=message):
            speculate(*models, **{"prompt": PROMPTS, "max_new_tokens": STEPS, **options})


def test_a_draft_of_other_tokens(simple):
    other = LanguageModel(simple.model.config.replace(vocab_size=49))
    with pytest.raises(ValueError, match=r"^draft_model = '49 tokens': expected 50, as in the model"):
        speculate(simple.model, simple.params, other, simple.params, PROMPTS)
