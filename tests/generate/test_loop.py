"""The loop makes the tokens that recomputing the whole text would make, for any batching of the rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.generate import generate, snapshot, stream
from based_jax.generate.pool import LayerStreams
from based_jax.generate.prompt import CHUNKS, bucket
from based_jax.generate.states import capacity_for, longest_text
from based_jax.models import MixerSpec
from based_jax.models.language_model import LanguageModel
from based_jax.ops import Stream
from tests.generate.tiny import LENGTH, MIXERS, forbidding, make_tiny
from tests.marks import slow_but

STEPS = 12
PROMPTS = [
    [7],  # shorter than any window or convolution
    [3, 1],
    [4, 4, 9, 0, 2, 30, 49, 8],
    list(range(10, 26)),  # exactly a bucket
    list(range(3, 45, 2)),  # the longest: 21 tokens, a bucket of 32
]


@pytest.fixture(scope="module")
def greedy(hybrid):
    """The hybrid model's tokens, made where a caller's settings forbid what must not happen inside."""
    with forbidding():
        return generate(hybrid.model, hybrid.params, PROMPTS, STEPS)


@pytest.fixture(scope="module")
def simple(tiny):
    """What does not depend on the mixers is tested with the one that compiles fastest."""
    return tiny("C")


@pytest.mark.parametrize("schedule", slow_but(["CA"], ["CA", "LS"]))
def test_greedy_is_the_full_forward_at_every_step(tiny, schedule):
    case = tiny(schedule)
    tokens = generate(case.model, case.params, PROMPTS, STEPS)
    assert tokens.dtype == jnp.int32
    assert tokens.shape == (len(PROMPTS), STEPS)
    expected = [case.greedy(prompt, STEPS) for prompt in PROMPTS]
    assert tokens.tolist() == expected
    assert len({token for row in expected for token in row}) >= 8, "the case is too easy"


@pytest.mark.slow
def test_one_key_serves_rows_by_their_number(simple):
    rng, same = jax.random.key(2), PROMPTS[4:] * 5
    tokens = generate(simple.model, simple.params, same, STEPS, 1.5, rng)
    assert len({tuple(row) for row in tokens.tolist()}) == 5
    assert generate(simple.model, simple.params, same, STEPS, 1.5, rng).tolist() == tokens.tolist()
    keys = jnp.broadcast_to(jax.random.fold_in(rng, 3), 5)
    alone = generate(simple.model, simple.params, same, STEPS, 1.5, keys)
    assert alone.tolist() == tokens[3:4].tolist() * 5


def test_mask_and_rows_say_the_same_whatever_the_padding_holds(hybrid, greedy):
    width = max(map(len, PROMPTS)) + 3
    for convert, side in ((np.asarray, "right"), (jnp.asarray, "left"), (np.asarray, "both")):
        prompt, mask = np.full((len(PROMPTS), width), 999), np.zeros((len(PROMPTS), width), int)
        for row, tokens in enumerate(PROMPTS):
            most = width - len(tokens)
            first = {"right": 0, "left": most, "both": most // 2}[side]
            prompt[row, first : first + len(tokens)], mask[row, first : first + len(tokens)] = tokens, 1
        tokens = generate(hybrid.model, hybrid.params, convert(prompt), STEPS, attention_mask=convert(mask))
        assert tokens.tolist() == greedy.tolist(), side


@pytest.mark.parametrize("chunk", [5, 64])
def test_prefill_in_chunks_changes_nothing(hybrid, greedy, chunk):
    tokens = generate(hybrid.model, hybrid.params, PROMPTS, STEPS, prefill_chunk=chunk)
    assert tokens.tolist() == greedy.tolist()


def test_lengths_inside_a_bucket_share_one_result(hybrid, greedy):
    assert all(
        n <= bucket(n) <= max(16, 1.25 * n + 16) and bucket(bucket(n)) == bucket(n) for n in range(1, 5000)
    )
    shorter = generate(hybrid.model, hybrid.params, PROMPTS, STEPS - 5)
    assert shorter.tolist() == greedy[:, : STEPS - 5].tolist()


def test_stopped_rows_pad(hybrid, greedy):
    rows = greedy.tolist()
    stops = (rows[2][3], rows[4][0])
    expected = []
    for row in rows:
        first = next((index for index, token in enumerate(row) if token in stops), STEPS)
        expected.append([*row[: first + 1], *[-1] * (STEPS - 1 - first)])
    tokens = generate(hybrid.model, hybrid.params, PROMPTS, STEPS, stop_tokens=stops, pad_token=-1)
    assert tokens.tolist() == expected
    assert expected != rows


@pytest.mark.release
def test_the_loop_ends_when_every_row_has_stopped(simple):
    everything = range(simple.model.config.vocab_size)
    options = {"stop_tokens": everything, "pad_token": -1}
    tokens, logprobs = generate(simple.model, simple.params, PROMPTS, 10_000, return_logprobs=True, **options)
    assert tokens.shape == logprobs.shape == (len(PROMPTS), 10_000)
    assert (logprobs[:, 0] < 0).all()
    assert (logprobs[:, 1:] == 0).all()
    assert (tokens[:, 0] >= 0).all()
    assert (tokens[:, 1:] == -1).all()
    outputs = list(stream(simple.model, simple.params, PROMPTS, 10_000, **options))
    assert [output.shape for output in outputs] == [(len(PROMPTS), 1)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"chunk": 4}, marks=pytest.mark.release),
        {"chunk": 4, "temperature": 0.9, "top_k": 9},
        pytest.param({"chunk": 50, "max_new_tokens": 5}, marks=pytest.mark.release),
        pytest.param({"chunk": 3, "max_new_tokens": 1}, marks=pytest.mark.release),
        {"chunk": 4, "stop_tokens": range(25), "pad_token": -1},
    ],
    ids=str,
)
def test_stream_is_generate_in_chunks(simple, options):
    options = {"max_new_tokens": STEPS, "rng": jax.random.key(3), **options}
    chunk = options.pop("chunk")
    with forbidding():
        outputs = list(stream(simple.model, simple.params, PROMPTS, chunk=chunk, **options))
    assert all(isinstance(output, np.ndarray) and output.dtype == np.int32 for output in outputs)
    sizes = [output.shape[1] for output in outputs]
    assert sizes[0] == 1
    assert all(size == chunk for size in sizes[1:-1])
    tokens = generate(simple.model, simple.params, PROMPTS, **options)
    joined = np.concatenate(outputs, axis=1)
    made = joined.shape[1]
    assert joined.tolist() == tokens[:, :made].tolist()
    assert (made < STEPS) if "stop_tokens" in options else (made == options["max_new_tokens"])
    assert (tokens[:, made:] == -1).all()


@pytest.mark.release
def test_log_probabilities_are_the_models_own(simple):
    options = {"temperature": 0.8, "rng": jax.random.key(1), "return_logprobs": True}
    tokens, logprobs = generate(simple.model, simple.params, PROMPTS, STEPS, **options)
    assert logprobs.shape == tokens.shape
    assert logprobs.dtype == jnp.float32
    for prompt, row, found in zip(PROMPTS, tokens.tolist(), logprobs, strict=True):
        text = prompt + row
        padded = np.array([text + [0] * (LENGTH - len(text))])
        logits = np.asarray(simple.forward(simple.params, padded))[0, :, :50]
        expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        made = np.arange(len(prompt), len(text))
        np.testing.assert_allclose(found, expected[made - 1, np.array(row)], atol=1e-4)
    outputs = list(stream(simple.model, simple.params, PROMPTS, STEPS, chunk=4, **options))
    streamed, their = (np.concatenate(parts, axis=1) for parts in zip(*outputs, strict=True))
    assert streamed.tolist() == tokens.tolist()
    np.testing.assert_allclose(their, logprobs, atol=1e-6)


ROWS = {
    "temperature": [0.0, 0.8, 1.5, 0.0, 0.9],
    "top_k": [None, 5, None, 3, None],
    "top_p": [0.5, 0.9, None, None, None],
    "min_p": [None, None, 0.05, None, None],
    "repetition_penalty": [1.0, 1.0, 2.0, 1.2, 1.0],
    "presence_penalty": [0.0, 3.0, 0.0, 0.0, 0.0],
    "frequency_penalty": [0.0, 0.0, -1.0, 0.0, 0.0],
}


def test_settings_per_row(simple):
    keys = jax.random.split(jax.random.key(5), len(PROMPTS))
    together = generate(simple.model, simple.params, PROMPTS, STEPS, rng=keys, **ROWS)
    for row in (1, 2, 3):
        own = {name: values[row] for name, values in ROWS.items()}
        same = [PROMPTS[row]] * 4 + PROMPTS[4:]  # rows of the same shape
        alone = generate(simple.model, simple.params, same, STEPS, rng=jnp.broadcast_to(keys[row], 5), **own)
        assert alone[:4].tolist() == together[row : row + 1].tolist() * 4
    plain = generate(simple.model, simple.params, PROMPTS, STEPS, rng=keys, temperature=ROWS["temperature"])
    assert plain[4].tolist() == together[4].tolist()
    assert plain.tolist() != together.tolist()


PENALISED = [42, 31, 25, 13, 15, 2, 3, 0]


@pytest.mark.release
@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_follow_the_text(simple, name):
    """So large that no token comes twice; the prompt's own count for repetition only."""
    free = generate(simple.model, simple.params, [PENALISED], STEPS)[0].tolist()
    assert len(set(free)) < STEPS
    made = generate(simple.model, simple.params, [PENALISED], STEPS, **{name: 1e6})[0].tolist()
    assert len(set(made)) == STEPS
    assert bool(set(made) & set(PENALISED)) == (name != "repetition_penalty")


@pytest.mark.release
def test_a_prefix_comes_before_every_row(hybrid):
    before = list(range(10, 26))
    rests = [[], [7], [3, 1], [], PROMPTS[2]]
    whole = generate(hybrid.model, hybrid.params, [before + rest for rest in rests], STEPS)
    for max_length in (len(before), 200):  # less, and more, than the calls need
        prefix = snapshot(hybrid.model, hybrid.params, before, max_length=max_length)
        for _ in range(2):  # it can be used again
            tokens = generate(hybrid.model, hybrid.params, rests, STEPS, prefix=prefix)
            assert tokens.tolist() == whole.tolist()
    nothing = generate(hybrid.model, hybrid.params, [[]] * len(rests), STEPS, prefix=prefix)
    assert nothing.tolist() == whole[:1].tolist() * len(rests)


@pytest.mark.release
def test_penalties_count_a_prefix(simple):
    options = {"repetition_penalty": 3.0}
    expected = generate(simple.model, simple.params, [PENALISED], STEPS, **options)
    prefix = snapshot(simple.model, simple.params, PENALISED[:-1])
    tokens = generate(simple.model, simple.params, [PENALISED[-1:]], STEPS, prefix=prefix, **options)
    assert tokens.tolist() == expected.tolist()


def test_layers_share_a_stream_in_the_loop(hybrid):
    """A row that is broken from some layer on is broken: its logits are NaN."""

    def is_stream(node):
        return isinstance(node, Stream)

    def streams_of(state):
        return [node for node in jax.tree.leaves(state, is_leaf=is_stream) if is_stream(node)]

    state = hybrid.model.init_state(2, 8)
    kept = LayerStreams(state)
    last = streams_of(state)[-1]
    last_broken = dataclasses.replace(last, broken=jnp.array([False, True]))
    carried = kept.strip(
        jax.tree.map(lambda node: last_broken if node is last else node, state, is_leaf=is_stream)
    )
    assert not streams_of(carried)
    for restored in (kept.within, kept.after):
        state = restored(carried, jnp.array(7))
        for node in streams_of(state):
            assert node.broken.tolist() == [False, True]
            assert node.length.tolist() == [7, 7]
        again = kept.strip(state)
        assert all(x is y for x, y in zip(again.arrays, carried.arrays, strict=True))


class Counting(LanguageModel):
    """Notes the number of tokens whenever its body is traced."""

    def hidden(self, tokens, *args, **kwargs):
        TRACES.append(tokens.shape[1])
        return super().hidden(tokens, *args, **kwargs)


TRACES: list[int] = []


@pytest.mark.release
def test_a_second_call_compiles_nothing(simple):
    def make(prompt, **options):
        generate(Counting(simple.model.config), simple.params, prompt, STEPS, **options)
        list(stream(Counting(simple.model.config), simple.params, prompt, STEPS, **options))
        return len(TRACES)

    first = make([[1, 2, 3]], temperature=0.5, top_p=0.9, rng=jax.random.key(0))
    assert 0 < first <= 6  # one prefill and two decoding loops, whose bodies JAX may trace twice
    rng = jax.random.key(1)
    assert make([[4, 5, 6, 7, 8]], temperature=0.9, top_p=0.3, top_k=3, min_p=0.1, rng=rng) == first
    assert make(np.array([[4, 5]]), temperature=[0.9], rng=rng, pad_token=3) == first
    greedy = make([[3]])  # loops without sampling
    assert first < greedy <= first + 4
    assert make([[4, 5, 6]], pad_token=3) == greedy
    logprobs = make([[3]], return_logprobs=True)  # loops with them
    assert greedy < logprobs <= greedy + 4
    assert make([[4, 5, 6]], pad_token=3, return_logprobs=True) == logprobs


@pytest.mark.release
def test_prompts_of_any_length_compile_a_handful_of_programs(simple):
    model = Counting(simple.model.config.replace(norm_eps=1e-6))  # a model of its own: nothing is compiled
    TRACES.clear()
    for length in (1, 7, 31, 32, 33, 100, 128, 129, 300, 511, 512, 513, 640, 1000, 1025, 2047, 2600, 3000):
        generate(model, simple.params, np.ones((1, length), int), 3)
    reading = [size for size in TRACES if size > 1]
    assert sorted(reading) == [*CHUNKS]
    assert len(TRACES) - len(reading) <= 2  # the decoding loop, whose body JAX may trace twice


def test_only_states_that_grow_have_a_capacity(tiny):
    assert capacity_for(tiny("CLS").model, 10**6) is None
    capacities = [capacity_for(tiny("CA").model, tokens) for tokens in range(1, 3000)]
    assert set(capacities) == {2**power for power in range(6, 13)}
    assert all(
        max(tokens, 64) <= max_length < max(2 * tokens, 65) for tokens, max_length in enumerate(capacities, 1)
    )


@pytest.mark.release
def test_generate_inside_jit(simple):
    prompt, mask = np.zeros((5, 21), int), np.zeros((5, 21), bool)
    for row, tokens in enumerate(PROMPTS):
        prompt[row, 21 - len(tokens) :], mask[row, 21 - len(tokens) :] = tokens, True
    inside = jax.jit(
        lambda params, prompt, mask: generate(simple.model, params, prompt, STEPS, attention_mask=mask)
    )
    assert (
        inside(simple.params, prompt, mask).tolist()
        == generate(simple.model, simple.params, PROMPTS, STEPS).tolist()
    )


def test_bfloat16(hybrid):
    """The loop's carry must keep its dtypes, which tracing alone shows."""
    model = LanguageModel(hybrid.model.config.replace(dtype="bfloat16"))
    tokens = jax.ShapeDtypeStruct((2, 20), jnp.int32)
    made = jax.eval_shape(
        lambda params, tokens: generate(model, params, tokens, 5, prefill_chunk=8), hybrid.params, tokens
    )
    assert made.shape == (2, 5)


def test_texts_end_with_the_filter_of_hyena(simple):
    config = simple.model.config.replace(schedule="H", mixers={"H": MixerSpec("hyena", {"l_max": 64})})
    assert longest_text(config) == 64
    with pytest.raises(ValueError, match="max_new_tokens = 6: expected at most 64, the model's longest text"):
        generate(LanguageModel(config), {"params": {}}, np.zeros((1, 60), np.int32), 6)


@pytest.mark.slow
def test_learned_positions_end(simple):
    model = LanguageModel(simple.model.config.replace(max_positions=20))
    params = {"params": {**simple.params["params"], "position_embedding": jnp.zeros((20, 16))}}
    expected = generate(simple.model, simple.params, PROMPTS[:4], 5)
    assert generate(model, params, PROMPTS[:4], 5).tolist() == expected.tolist()
    with pytest.raises(ValueError, match=r"^max_new_tokens = 6: expected at most 20, the model's"):
        generate(model, params, PROMPTS[:4], 6)


def test_blocks_after_the_prompt():
    """A loop over tokens, where layers share a stream, begins new blocks where one call does."""
    mixers = {"B": MixerSpec("blocked_window", {"num_heads": 2, "width": 3}), "A": MIXERS["A"]}
    tiny = make_tiny("BA", mixers=mixers)
    tokens = generate(tiny.model, tiny.params, [PROMPT := [7, 3, 9, 1, 4]], 12)
    assert tokens[0].tolist() == tiny.greedy(PROMPT, 12)
