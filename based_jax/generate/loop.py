"""Generate: one compiled prefill, then one compiled loop over single tokens with the state donated.

    prefill   h, state = model.hidden(prompt, state);   keep h of each row's last token
    decode    token ~ sample(unembed(h));   h, state = model.hidden(token, state);   repeat

Rows of one batch may have prompts of different lengths: the state knows how far each row has come.
"""

import functools
import numbers
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from based_jax.generate.prompt import Prompt, Tokens, bucket, pad_to, read_prompt, read_tokens
from based_jax.generate.sampling import Sampler, next_tokens, row_keys, step_keys
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Array, Bool, Float, Int, Mask, Params, State
from based_jax.validate import expect


class Progress(NamedTuple):
    """What decoding carries from token to token."""

    state: State
    hidden: Float[Array, "B D"]
    """the final norm's output at each row's last token"""
    done: Bool[Array, " B"]
    """rows that have emitted a stop token"""
    step: Int[Array, ""]
    """tokens made so far"""


class Choice(NamedTuple):
    """How tokens are chosen: array arguments of the compiled loop, so other values do not compile again."""

    keys: Array | None
    temperature: float | None
    """None is greedy"""
    top_p: float | None
    stop_tokens: np.ndarray
    pad_token: int


class Request(NamedTuple):
    """A validated call."""

    prompt: Prompt
    chunk: int
    """tokens per prefill call; divides the prompt's padded length"""
    capacity: int
    """tokens that a state must hold"""
    choice: Choice
    top_k: int | None


def generate(
    model: LanguageModel,
    params: Params,
    prompt: Tokens,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    rng: Array | None = None,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_tokens: Sequence[int] = (),
    prompt_mask: Mask | np.ndarray | None = None,
    pad_token: int = 0,
    prefill_chunk: int | None = None,
) -> Int[Array, "B max_new_tokens"]:
    """Continue prompts.

    Compiled once per model, batch size, `top_k` and bucket of lengths; other prompts, keys, temperatures and
    stop tokens reuse the programs.

    Args:
        model: any model whose mixers can continue from a state.
        params: its variables.
        prompt: (B, N) integers, or B rows of any lengths.
        max_new_tokens: tokens to make per row.
        temperature: 0 takes the most likely token; else the logits are divided by it and sampled.
        rng: `jax.random.key(seed)`, needed when temperature > 0. Row r uses fold_in(rng, r). With one key
            per row, shape (B,), a row makes the same tokens in any batch.
        top_k: sample among this many most likely tokens.
        top_p: sample among the fewest of them whose probabilities sum to at least this.
        stop_tokens: a row that emits one of these emits `pad_token` from then on; the loop ends when every
            row has.
        prompt_mask: (B, N) booleans, True for real tokens, right padding only.
        pad_token: what stopped rows emit; may lie outside of the vocabulary, such as -1.
        prefill_chunk: read the prompt this many tokens at a time: less memory, the same result.

    Returns:
        The new tokens, int32 (B, max_new_tokens).

    Raises:
        TypeError, ValueError: an argument of the wrong shape, dtype or value, named in the message.
    """
    sampler = Sampler(temperature, top_k, top_p)
    request = _read(
        model, prompt, max_new_tokens, sampler, rng, stop_tokens, prompt_mask, pad_token, prefill_chunk
    )
    progress = _start(model, params, request)
    total = int(max_new_tokens)
    tokens, _, _ = _decode(
        model, params, progress, total, request.choice, size=bucket(total), top_k=request.top_k
    )
    return tokens[:, :total]


def stream(
    model: LanguageModel,
    params: Params,
    prompt: Tokens,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    rng: Array | None = None,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_tokens: Sequence[int] = (),
    prompt_mask: Mask | np.ndarray | None = None,
    pad_token: int = 0,
    prefill_chunk: int | None = None,
    chunk: int = 8,
) -> Iterator[np.ndarray]:
    """Continue prompts and yield the tokens while they are made.

    The pieces, joined along the length, are `generate`'s tokens. Once every row has stopped the iterator
    ends, without the padding that `generate` adds. Arguments are checked at the call, not at the first piece.

    Args:
        chunk: tokens per piece and dispatch; the first piece is the first token alone.
        others: see `generate`.

    Returns:
        Iterator over int32 (B, tokens).

    Raises:
        TypeError, ValueError: as `generate`.
    """
    sampler = Sampler(temperature, top_k, top_p)
    request = _read(
        model, prompt, max_new_tokens, sampler, rng, stop_tokens, prompt_mask, pad_token, prefill_chunk
    )
    _expect_count("chunk", chunk)
    return _pieces(model, params, request, int(max_new_tokens), int(chunk))


def _pieces(model: Any, params: Params, request: Request, total: int, chunk: int) -> Iterator[np.ndarray]:
    progress = _start(model, params, request)
    counts = [1] + [min(chunk, total - made) for made in range(1, total, chunk)]

    def dispatch(count: int) -> tuple[Array, Array]:
        nonlocal progress
        tokens, made, progress = _decode(
            model, params, progress, count, request.choice, size=chunk, top_k=request.top_k
        )
        return tokens, made

    pending = dispatch(counts[0])
    for index, count in enumerate(counts):
        # The next piece is computed while the caller looks at this one.
        ahead = dispatch(counts[index + 1]) if index + 1 < len(counts) else None
        tokens, made = np.asarray(pending[0]), int(pending[1])
        if made:
            yield tokens[:, :made]
        if made < count or ahead is None:
            return
        pending = ahead


def _read(
    model: LanguageModel,
    prompt: Tokens,
    max_new_tokens: int,
    sampler: Sampler,
    rng: Array | None,
    stop_tokens: Sequence[int],
    prompt_mask: Any,
    pad_token: int,
    prefill_chunk: int | None,
) -> Request:
    """Validate a call's arguments and choose the sizes that are compiled."""
    vocab_size = model.config.vocab_size
    _expect_count("max_new_tokens", max_new_tokens)
    read = read_prompt(prompt, prompt_mask, vocab_size)
    batch, length = read.tokens.shape
    limit = model.config.max_positions
    if limit:  # beyond its table the model would return NaN
        most = f"at most {limit} = max_positions of the model, less a prompt of {length} tokens, plus 1"
        expect(length + max_new_tokens - 1 <= limit, "max_new_tokens", max_new_tokens, most)
    stops = read_tokens("stop_tokens", stop_tokens, vocab_size)
    expect(isinstance(pad_token, numbers.Integral), "pad_token", pad_token, "an integer")
    keys = None
    if not sampler.greedy:
        expect(rng is not None, "rng", rng, "jax.random.key(seed) when temperature > 0")
        keys = row_keys(rng, batch)

    if prefill_chunk is not None:
        _expect_count("prefill_chunk", prefill_chunk)
    chunk = min(bucket(length), prefill_chunk or bucket(length))
    padded = -(-length // chunk) * chunk
    choice = Choice(
        keys=keys,
        temperature=None if sampler.greedy else float(sampler.temperature),
        top_p=None if sampler.greedy or sampler.top_p is None else float(sampler.top_p),
        stop_tokens=stops,
        pad_token=int(pad_token),
    )
    top_k = None if sampler.greedy or sampler.top_k is None else int(sampler.top_k)
    return Request(pad_to(read, padded), chunk, bucket(padded + max_new_tokens), choice, top_k)


def _start(model: LanguageModel, params: Params, request: Request) -> Progress:
    """Read the prompt."""
    tokens, lengths = request.prompt
    progress = None
    for offset in range(0, tokens.shape[1], request.chunk):
        part = tokens[:, offset : offset + request.chunk]
        progress = _prefill(model, params, progress, part, lengths, offset, capacity=request.capacity)
    assert progress is not None
    return progress


@functools.partial(jax.jit, static_argnames=("model", "capacity"), donate_argnames=("progress",))
def _prefill(model, params, progress, tokens, lengths, offset, *, capacity):
    """Read tokens offset ... offset + C of prompts of `lengths` tokens; the first call makes the state."""
    batch, size = tokens.shape
    fresh = progress is None
    state = model.init_state(batch, capacity) if fresh else progress.state
    mask = offset + jnp.arange(size)[None] < lengths[:, None]
    h, state = model.apply(params, tokens, state, mask=mask, method="hidden")
    last = lengths - 1 - offset  # of the whole prompt: in this part, before it or behind it
    hidden = jnp.take_along_axis(h, jnp.clip(last, 0, size - 1)[:, None, None], axis=1)[:, 0]
    if not fresh:
        hidden = jnp.where((last >= 0)[:, None], hidden, progress.hidden)
    return Progress(state, hidden, jnp.zeros((batch,), bool), jnp.zeros((), jnp.int32))


@functools.partial(jax.jit, static_argnames=("model", "size", "top_k"), donate_argnames=("progress",))
def _decode(model, params, progress, limit, choice, *, size, top_k):
    """Make up to `limit` <= size tokens, fewer if every row stops.

    Returns:
        tokens: int32 (B, size), padded behind what was made; how many were made; the progress behind them.
    """

    def unfinished(carry):
        made, progress, _ = carry
        return (made < limit) & ~progress.done.all()

    def body(carry):
        made, (state, hidden, done, step), tokens = carry
        logits = model.apply(params, hidden, method="unembed")
        token = next_tokens(
            logits,
            None if choice.keys is None else step_keys(choice.keys, step),
            vocab_size=model.config.vocab_size,
            temperature=choice.temperature,
            top_k=top_k,
            top_p=choice.top_p,
        )
        tokens = tokens.at[:, made].set(jnp.where(done, choice.pad_token, token))
        done = done | (token[:, None] == choice.stop_tokens[None]).any(axis=1)
        # Stopped rows go on with the token they would have made: padding may lie outside of the vocabulary.
        h, state = model.apply(params, token[:, None], state, method="hidden")
        return made + 1, Progress(state, h[:, 0], done, step + 1), tokens

    tokens = jnp.full((progress.hidden.shape[0], size), choice.pad_token, jnp.int32)
    made, progress, tokens = lax.while_loop(unfinished, body, (jnp.zeros((), jnp.int32), progress, tokens))
    return tokens, made, progress


def _expect_count(argument: str, value: Any) -> None:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    expect(whole and int(value) >= 1, argument, value, "an integer, at least 1")
