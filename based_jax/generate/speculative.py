"""Speculative decoding: a small model proposes tokens, the target model checks them in one call.

    draft     x_1 ... x_k,   x_i ~ q_i                       one token at a time
    target    p_1 ... p_{k+1}                                all at once, after x_1 ... x_{i-1}
    accept    x_i while u_i q_i(x_i) < p_i(x_i)              u_i uniform in [0, 1)
    then      one more token ~ max(p_i - q_i, 0) after the first x_i rejected, ~ p_{k+1} if all are accepted

The tokens are distributed as the target's own, for any draft model (Leviathan et al. 2023, arXiv 2211.17192,
appendix A.1; Chen et al. 2023, arXiv 2302.01318). Greedy decoding is the case of distributions with all
their mass on one token: its tokens are `generate`'s. Penalties and biases are included in p_i and q_i: each
depends on the counts of the text up to the last round and of the drafts before x_i.

Rejected tokens must be forgotten. A KV cache would move a pointer; a recurrent state cannot go back, so a
round begins with the state before its last n accepted tokens and reads those again, in one call with twice
the rows: the first half reads them alone, padded, and yields the state of the next round; the second half
reads them and the new drafts, and yields the distributions. The weights are read once per round, and the
only extra memory is a second state. Rows accept different numbers of tokens; masks handle this.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Key

from based_jax.generate.capacity import capacity_for
from based_jax.generate.logit_bias import Biases
from based_jax.generate.loop import begin, prefill
from based_jax.generate.prompt import Prompt, Tokens, bucket, chunk_sizes, pad_to, read_prompt, read_tokens
from based_jax.generate.sampling import Counts, RowSettings, adjusted, batch_settings, candidates
from based_jax.models.language_model import LanguageModel
from based_jax.typing import Array, Float, Int, Mask, Params, State
from based_jax.validate import INT32_MAX, expect, expect_integer

_DRAFT, _ACCEPT, _AFTER = range(3)
"""purpose of a random number; with a token's position it determines the number's key"""


class Speculation(NamedTuple):
    """The tokens, and how many of them the draft proposed."""

    tokens: Int[Array, "B max_new_tokens"]
    accepted: Int[Array, " B"]
    """number of each row's tokens that the draft proposed"""
    rounds: Int[Array, " B"]
    """number of target calls that each row took; the last token of each call is the target's own, unless a
    draft was a stop token"""


class Progress(NamedTuple):
    """The carry from round to round."""

    state: State
    """the target's, after all tokens but the pending ones"""
    draft_state: State
    """the draft's, after the same tokens"""
    pending: Int[Array, "B k+1"]
    """the tokens of the last round, which neither state has read"""
    count: Int[Array, " B"]
    """the number of pending tokens; 0 for a row that is done"""
    tokens: Int[Array, "B size"]
    made: Int[Array, " B"]
    accepted: Int[Array, " B"]
    rounds: Int[Array, " B"]
    counts: Counts | None
    """token counts of each row's text, the pending ones included, if any row has penalties"""


class Rules(NamedTuple):
    """How tokens are chosen and where rows end: array arguments of the compiled rounds."""

    settings: RowSettings
    biases: Biases | None
    stops: np.ndarray
    limit: int


def speculate(
    model: LanguageModel,
    params: Params,
    draft_model: LanguageModel,
    draft_params: Params,
    prompt: Tokens,
    max_new_tokens: int = 64,
    temperature: float | Sequence[float] = 0.0,
    rng: Array | None = None,
    *,
    draft_tokens: int = 4,
    top_k: int | Sequence[int | None] | None = None,
    top_p: float | Sequence[float | None] | None = None,
    min_p: float | Sequence[float | None] | None = None,
    repetition_penalty: float | Sequence[float] = 1.0,
    presence_penalty: float | Sequence[float] = 0.0,
    frequency_penalty: float | Sequence[float] = 0.0,
    logit_bias: Mapping[int, float] | Sequence[Mapping[int, float] | None] | None = None,
    stop_tokens: Sequence[int] = (),
    prompt_mask: Mask | np.ndarray | None = None,
    pad_token: int = 0,
) -> Speculation:
    """Continue prompts with the help of a draft model.

    Greedy tokens are those of `generate`, up to the rounding of logits that are nearly equal; sampled ones
    have its distribution, not its values. They depend on a row's own key only.

    Args:
        model, params: the target; any model whose mixers can continue from a state.
        draft_model, draft_params: another model with the same vocabulary, such as `early_exit`'s.
        prompt, max_new_tokens, temperature, rng, prompt_mask, pad_token: see `generate`.
        draft_tokens: number of tokens that the draft proposes per round.
        top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias: see
            `generate`; they change both models' distributions.
        stop_tokens: a row that emits one of these emits `pad_token` from then on.

    Returns:
        The new tokens, int32 (B, max_new_tokens), and for each row, int32 (B,), the number of tokens that the
        draft proposed and the number of calls of the target (Leviathan et al. 2023, appendix A.1).

    Raises:
        TypeError, ValueError: an argument of the wrong shape, dtype or value, named in the message.
    """
    vocab_size = model.config.vocab_size
    theirs = draft_model.config.vocab_size
    expect(theirs == vocab_size, "draft_model", f"{theirs} tokens", f"{vocab_size}, as in the model")
    expect_integer("max_new_tokens", max_new_tokens, 1)
    expect_integer("draft_tokens", draft_tokens, 1)
    expect_integer("pad_token", pad_token, -INT32_MAX - 1)
    read = read_prompt(prompt, prompt_mask, vocab_size)
    batch, length = read.tokens.shape
    for name, config in (("model", model.config), ("draft_model", draft_model.config)):
        limit = config.max_positions or length + max_new_tokens
        most = f"at most {limit} = max_positions of {name}, less a prompt of {length} tokens, plus 1"
        expect(length + max_new_tokens - 1 <= limit, "max_new_tokens", max_new_tokens, most)
    sampling = {
        **{"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p},
        **{"repetition_penalty": repetition_penalty, "presence_penalty": presence_penalty},
        **{"frequency_penalty": frequency_penalty, "logit_bias": logit_bias},
    }
    chosen = batch_settings(rng, batch, vocab_size, **sampling)
    stops = read_tokens("stop_tokens", stop_tokens, vocab_size)

    tokens = length + max_new_tokens
    last = jnp.take_along_axis(jnp.asarray(read.tokens), jnp.asarray(read.lengths)[:, None] - 1, axis=1)
    made, accepted, rounds = jnp.zeros((3, batch), jnp.int32)
    real = jnp.arange(length) < jnp.asarray(read.lengths)[:, None]
    progress = Progress(
        state=_read_all_but_last(model, params, read, tokens),
        draft_state=_read_all_but_last(draft_model, draft_params, read, tokens),
        pending=jnp.pad(last, ((0, 0), (0, draft_tokens))),
        count=jnp.ones((batch,), jnp.int32),
        tokens=jnp.full((batch, bucket(max_new_tokens)), pad_token, jnp.int32),
        made=made,
        accepted=accepted,
        rounds=rounds,
        counts=Counts.of_prompt(jnp.asarray(read.tokens), real, vocab_size) if chosen.penalises else None,
    )
    rules = Rules(chosen.rows, chosen.biases, stops, int(max_new_tokens))
    after = _rounds(model, params, draft_model, draft_params, progress, rules)
    return Speculation(after.tokens[:, :max_new_tokens], after.accepted, after.rounds)


def early_exit(model: LanguageModel, params: Params, layers: int) -> tuple[LanguageModel, Params]:
    """Make a draft model without training: the first layers of a model, with its final norm and head.

    Returns:
        The smaller model, and the parameters that it needs: the same arrays, not copies.

    Raises:
        ValueError: `layers` is not between 1 and the model's number of layers.
    """
    config = model.config
    expect_integer("layers", layers, 1, config.num_layers)
    left_out = {f"layers_{index}" for index in range(layers, config.num_layers)}
    kept = {name: part for name, part in params["params"].items() if name not in left_out}
    return LanguageModel(config.replace(schedule=config.schedule[:layers])), {"params": kept}


def check(
    target: Float[Array, "B k+1 vocab"],
    draft: Float[Array, "B k vocab"],
    drafts: Int[Array, "B k"],
    allowed: Int[Array, " B"],
    uniform: Float[Array, "B k"],
) -> tuple[Int[Array, " B"], Float[Array, "B vocab"]]:
    """Decide which drafts to accept, and the distribution of the token after them.

    Args:
        target: probabilities of the target before each draft and after the last.
        draft: probabilities that the drafts were drawn from.
        allowed: number of each row's drafts that may be accepted.
        uniform: independent uniform numbers in [0, 1).

    Returns:
        How many of the first drafts are accepted, and the distribution of the next token, not normalised.
    """
    proposed = drafts.shape[1]
    wanted, offered = (
        jnp.take_along_axis(side[:, :proposed], drafts[..., None], axis=2)[..., 0] for side in (target, draft)
    )
    good = (uniform * offered < wanted) & (jnp.arange(proposed) < allowed[:, None])
    accepted = jnp.cumprod(good, axis=1).sum(axis=1, dtype=jnp.int32)
    position = accepted[:, None, None]
    wanted = jnp.take_along_axis(target, position, axis=1)[:, 0]
    offered = jnp.take_along_axis(draft, jnp.minimum(position, proposed - 1), axis=1)[:, 0]
    rest = jnp.maximum(wanted - offered, 0)
    # No draft was rejected after the last allowed one; and equal distributions may differ by rounding.
    refused = (accepted < allowed) & (rest.sum(axis=1) > 0)
    return accepted, jnp.where(refused[:, None], rest, wanted)


@functools.partial(jax.jit, static_argnames=("model", "draft_model"), donate_argnames=("progress",))
def _rounds(
    model: LanguageModel,
    params: Params,
    draft_model: LanguageModel,
    draft_params: Params,
    progress: Progress,
    rules: Rules,
) -> Progress:
    """Run rounds until every row has made `rules.limit` tokens or stopped."""
    keys, limit = rules.settings.keys, rules.limit

    def body(progress: Progress) -> Progress:
        drafts, draft, draft_state = _propose(draft_model, draft_params, progress, rules)
        # One token of a round is the target's own, so more drafts than this would be useless.
        allowed = jnp.clip(limit - progress.made - 1, 0, drafts.shape[1])
        target, state = _distributions(model, params, progress, drafts, allowed, rules)
        positions = progress.made[:, None] + jnp.arange(drafts.shape[1])
        uniform = jax.vmap(jax.vmap(jax.random.uniform))(_keys(keys, positions, _ACCEPT))
        accepted, rest = check(target, draft, drafts, allowed, uniform)
        after = _draw(_keys(keys, progress.made + accepted, _AFTER), rest, rules.settings)
        progress = progress._replace(state=state, draft_state=draft_state)
        return _accept(progress, drafts, accepted, after, rules)

    return lax.while_loop(lambda progress: (progress.count > 0).any(), body, progress)


def _propose(
    model: LanguageModel, params: Params, progress: Progress, rules: Rules
) -> tuple[Int[Array, "B k"], Float[Array, "B k vocab"], State]:
    """Return drafts, their distributions, and the draft's state after the pending tokens."""
    size = progress.pending.shape[1]
    mask = jnp.arange(size) < progress.count[:, None]
    hidden, after = model.apply(params, progress.pending, progress.draft_state, mask=mask, method="hidden")
    last = jnp.maximum(progress.count - 1, 0)

    def draw(hidden: Array, index: Array, counts: Counts | None) -> tuple[Array, Array]:
        each = jax.tree.map(lambda part: part[:, None], counts)
        probabilities = _probabilities(model, params, hidden[:, None], rules, each)[:, 0]
        keys = _keys(rules.settings.keys, progress.made + index, _DRAFT)
        return _draw(keys, probabilities, rules.settings), probabilities

    def step(carry: tuple[State, Array, Counts | None], index: Array) -> tuple[Any, Any]:
        state, token, counts = carry
        counts = None if counts is None else counts.add(token)
        hidden, state = model.apply(params, token[:, None], state, method="hidden")
        token, probabilities = draw(hidden[:, 0], index, counts)
        return (state, token, counts), (token, probabilities)

    before = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
    first = draw(before, jnp.zeros((), jnp.int32), progress.counts)
    _, others = lax.scan(step, (after, first[0], progress.counts), jnp.arange(1, size - 1))
    joined = jax.tree.map(
        lambda one, more: jnp.moveaxis(jnp.concatenate([one[None], more]), 0, 1), first, others
    )
    return *joined, after


def _distributions(
    model: LanguageModel,
    params: Params,
    progress: Progress,
    drafts: Int[Array, "B k"],
    allowed: Int[Array, " B"],
    rules: Rules,
) -> tuple[Float[Array, "B k+1 vocab"], State]:
    """Return the target's probabilities before every draft and after the last, and its state after the
    pending tokens."""
    batch, proposed = drafts.shape
    count = progress.count[:, None]
    position = count + jnp.arange(proposed)
    text = jnp.pad(progress.pending, ((0, 0), (0, proposed)))
    text = text.at[jnp.arange(batch)[:, None], position].set(drafts)
    index = jnp.arange(text.shape[1])
    rows = jnp.where(count > 0, count + allowed[:, None], 0)
    mask = jnp.concatenate([index < count, index < rows])
    text, twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), (text, progress.state))
    hidden, state = model.apply(params, text, twice, mask=mask, method="hidden")
    front = jnp.maximum(jnp.concatenate([count - 1, position], axis=1), 0)
    hidden = jnp.take_along_axis(hidden[batch:], front[..., None], axis=1)
    state = jax.tree.map(lambda leaf: leaf[:batch], state)
    return _probabilities(model, params, hidden, rules, _counts_before(progress.counts, drafts)), state


def _accept(
    progress: Progress,
    drafts: Int[Array, "B k"],
    accepted: Int[Array, " B"],
    after: Int[Array, " B"],
    rules: Rules,
) -> Progress:
    """Make the accepted drafts and the token after them the next round's pending tokens."""
    batch, size = progress.pending.shape
    index = jnp.arange(size)
    tokens = jnp.where(index < accepted[:, None], jnp.pad(drafts, ((0, 0), (0, 1))), after[:, None])
    stop = (tokens[..., None] == rules.stops).any(axis=-1) & (index <= accepted[:, None])
    stopped = stop.any(axis=1)
    count = jnp.where(stopped, jnp.argmax(stop, axis=1).astype(jnp.int32), accepted) + 1
    count = jnp.where(progress.count > 0, count, 0)
    # Writes at an index beyond the array are dropped.
    position = jnp.where(index < count[:, None], progress.made[:, None] + index, progress.tokens.shape[1])
    made, counts = progress.made + count, progress.counts
    if counts is not None:
        counts = counts.add_rows(tokens, index < count[:, None])
    return progress._replace(
        pending=tokens,
        count=jnp.where(stopped | (made >= rules.limit), 0, count),
        tokens=progress.tokens.at[jnp.arange(batch)[:, None], position].set(tokens, mode="drop"),
        made=made,
        accepted=progress.accepted + jnp.minimum(accepted, count),
        rounds=progress.rounds + (progress.count > 0),
        counts=counts,
    )


def _counts_before(counts: Counts | None, drafts: Int[Array, "B k"]) -> Any:
    """Return the counts (B, k + 1, vocab) of the text before every draft and after the last."""
    if counts is None:
        return None
    each = jax.nn.one_hot(drafts, counts.output.shape[1], dtype=jnp.int32)
    drafted = jnp.pad(jnp.cumsum(each, axis=1), ((0, 0), (1, 0), (0, 0)))
    return Counts(jnp.broadcast_to(counts.prompt[:, None], drafted.shape), counts.output[:, None] + drafted)


def _probabilities(
    model: LanguageModel, params: Params, hidden: Float[Array, "B n D"], rules: Rules, counts: Any
) -> Float[Array, "B n vocab"]:
    """Return the sampling distribution: all mass on the most likely token if the temperature is 0.

    Args:
        counts: `Counts` of (B, n, vocab), of the text before each position; None without penalties.
    """
    logits: Any = model.apply(params, hidden, method="unembed")
    logits = logits[..., : model.config.vocab_size]
    batch, count, size = logits.shape
    # vmap would turn the conditions inside into selections, which compute both branches.
    rows, biases = jax.tree.map(
        lambda x: jnp.repeat(x, count, axis=0), (rules.settings._replace(keys=None), rules.biases)
    )
    counts = jax.tree.map(lambda part: part.reshape(-1, size), counts)
    flat = adjusted(logits.reshape(-1, size), rows, counts, biases)
    likely = jax.nn.one_hot(jnp.argmax(flat, axis=-1), size, dtype=flat.dtype)

    def sampled() -> Array:
        warm = rows.temperature > 0
        return jnp.where(warm[:, None], jax.nn.softmax(candidates(flat, rows)), likely)

    return lax.cond((rules.settings.temperature > 0).any(), sampled, lambda: likely).reshape(
        batch, count, size
    )


def _draw(
    keys: Key[Array, " B"], probabilities: Float[Array, "B vocab"], settings: RowSettings
) -> Int[Array, " B"]:
    """Draw one token per row from probabilities that need not sum to 1."""

    def sampled() -> Array:
        return jax.vmap(jax.random.categorical)(keys, jnp.log(probabilities)).astype(jnp.int32)

    likely = jnp.argmax(probabilities, axis=-1).astype(jnp.int32)
    return lax.cond((settings.temperature > 0).any(), sampled, lambda: likely)


def _keys(keys: Key[Array, " B"], positions: Int[Array, "B ..."], purpose: int) -> Key[Array, "B ..."]:
    """Return a key per position of each row. A position that is proposed again, because the tokens before it
    were rejected, gets the same numbers again: they did not influence any token that was kept."""

    def of(key: Array, position: Array) -> Array:
        return jax.random.fold_in(jax.random.fold_in(key, position), purpose)

    of_rows = jax.vmap(of if positions.ndim == 1 else jax.vmap(of, (None, 0)))
    return of_rows(keys, positions)


def _read_all_but_last(model: LanguageModel, params: Params, prompt: Prompt, total: int) -> State:
    """Return the state before each row's last token, with capacity for `total` tokens."""
    chunks = chunk_sizes(prompt.tokens.shape[1] - 1)
    tokens, lengths = pad_to(prompt, max(sum(chunks), prompt.tokens.shape[1]))
    progress = begin(model, len(lengths), capacity_for(model, total))
    for offset, end in itertools.pairwise(itertools.accumulate(chunks, initial=0)):
        progress = prefill(model, params, progress, tokens[:, offset:end], lengths - 1, offset)
    return progress.state
