"""What an engine must answer, by the parallel forward over prompt and answer."""

from collections.abc import Sequence

import jax
import numpy as np

from based_jax.generate import Completion, Request
from based_jax.generate.sampling import Choice, Counts, choose, row_settings
from tests.generate.tiny import LENGTH, Tiny

ENGINE = {"slots": 2, "max_length": LENGTH, "prefill_chunk": 8, "decode_chunk": 4}
"""options that the tests share, so that they share compiled programs"""

ROWS, STEPS = 32, 24  # of one call of the forward; answers have fewer than STEPS tokens
_choose = jax.jit(choose, static_argnames=("vocab_size", "top_logprobs"))


def check(tiny: Tiny, requests: Sequence[Request], answers: Sequence[Completion]) -> None:
    """Check that answers are what the model says, and end where and why they must.

    A cancelled one must be the beginning of the right answer. The model should be a float64 one: what
    differs in the order of its sums could choose otherwise at a near tie.
    """
    assert len(requests) == len(answers)
    for begin in range(0, len(requests), ROWS):
        _check(tiny, requests[begin : begin + ROWS], answers[begin : begin + ROWS])


def _check(tiny: Tiny, requests: Sequence[Request], answers: Sequence[Completion]) -> None:
    choices = _choices(tiny, requests, answers)
    _check_prompts(tiny, requests, answers)
    for row, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        made = list(answer.tokens)
        right = choices.token[row, : len(made) + 1].tolist()
        assert made == right[:-1], (request, answer)
        assert not set(made) & set(request.stop_tokens)
        assert len(made) + (answer.finish == "stop") <= request.max_new_tokens
        assert (answer.finish == "length") == (len(made) == request.max_new_tokens), answer
        assert answer.finish != "stop" or right[-1] in request.stop_tokens
        if request.logprobs is None:
            assert answer.logprobs == answer.prompt_logprobs == ()
            assert answer.end is None
            continue
        if answer.finish == "stop":
            assert answer.end.token == right[-1]
            np.testing.assert_allclose(
                answer.end.logprob, choices.logprob[row, len(made)], rtol=1e-5, atol=1e-6
            )
        assert [item.token for item in answer.logprobs] == made
        logprobs = [item.logprob for item in answer.logprobs]
        np.testing.assert_allclose(logprobs, choices.logprob[row, : len(made)], rtol=1e-5, atol=1e-6)
        for step, item in enumerate(answer.logprobs):
            ids, values = zip(*item.top, strict=True) if item.top else ((), ())
            assert list(ids) == choices.top_ids[row, step, : request.logprobs].tolist()
            np.testing.assert_allclose(
                values, choices.top_logprobs[row, step, : len(ids)], rtol=1e-5, atol=1e-6
            )


def _check_prompts(tiny: Tiny, requests: Sequence[Request], answers: Sequence[Completion]) -> None:
    """The log-probabilities of prompts are those of one pass over them."""
    asked = [row for row, request in enumerate(requests) if request.prompt_logprobs]
    if not asked:
        return
    texts, size = np.zeros((ROWS, LENGTH), np.int32), tiny.model.config.vocab_size
    for row in asked:
        texts[row, : len(requests[row].prompt)] = requests[row].prompt
    logprobs = np.asarray(jax.nn.log_softmax(tiny.forward(tiny.params, texts)[..., :size]))
    for row in asked:
        own, items = logprobs[row], answers[row].prompt_logprobs
        prompt, top = requests[row].prompt, requests[row].logprobs
        assert [item.token for item in items] == list(prompt[1:])
        for position, item in enumerate(items):
            np.testing.assert_allclose(item.logprob, own[position, item.token], rtol=1e-5, atol=1e-6)
            assert [token for token, _ in item.top] == np.argsort(-own[position])[:top].tolist()
            expected = -np.sort(-own[position])[:top]
            np.testing.assert_allclose([v for _, v in item.top], expected, rtol=1e-5, atol=1e-6)


def _choices(tiny: Tiny, requests: Sequence[Request], answers: Sequence[Completion]) -> Choice:
    """What `choose` says at each step of each row; numpy arrays (ROWS, STEPS, ...)."""
    vocab_size = tiny.model.config.vocab_size
    texts = np.zeros((ROWS, LENGTH), np.int32)
    prompts, outputs = np.zeros((2, ROWS, STEPS, vocab_size), np.int32)
    positions = np.zeros((ROWS, STEPS), np.int32)
    for row, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        text = [*request.prompt, *answer.tokens]
        texts[row, : len(text)] = text
        positions[row] = np.minimum(len(request.prompt) - 1 + np.arange(STEPS), LENGTH - 1)
        prompts[row] = np.bincount(request.prompt, minlength=vocab_size)
        made = np.eye(vocab_size, dtype=np.int32)[list(answer.tokens)].reshape(-1, vocab_size)
        outputs[row, 1 : 1 + len(made)] = np.cumsum(made, axis=0)
    logits = np.take_along_axis(np.asarray(tiny.forward(tiny.params, texts)), positions[..., None], axis=1)
    samplers = [request.sampler for request in requests]
    keys = jax.vmap(jax.random.key)(np.array([request.seed for request in requests], np.uint32))
    rows = np.minimum(np.arange(ROWS), len(requests) - 1).repeat(STEPS)
    settings = jax.tree.map(lambda setting: setting[rows], row_settings(samplers, keys))
    counts = Counts(*(part.reshape(ROWS * STEPS, vocab_size) for part in (prompts, outputs)))
    flat = logits.reshape(ROWS * STEPS, -1)
    steps = np.tile(np.arange(STEPS, dtype=np.int32), ROWS)
    choice = _choose(flat, settings, steps, counts, vocab_size=vocab_size, top_logprobs=5)
    return jax.tree.map(lambda part: np.asarray(part).reshape(ROWS, STEPS, *part.shape[1:]), choice)
