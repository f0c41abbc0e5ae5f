"""Score target tokens with a causal model, given the final norm's output before each target; check models."""

from typing import Any

import jax
import jax.numpy as jnp

from based_jax.models.language_model import LanguageModel, make_mixer
from based_jax.typing import Array, Float, Int, Params
from based_jax.validate import expect


def target_scores(
    model: LanguageModel, params: Params, hidden: Float[Array, "N D"], targets: Int[Array, " N"]
) -> tuple[Float[Array, " N"], Int[Array, " N"], Float[Array, " N"]]:
    """Compute the losses of targets, and of the most likely tokens at their positions.

    The softmax is over the padded vocabulary, as in training; the most likely token is never padding.

    Returns:
        The targets' losses in nats, the most likely tokens, and their losses.
    """
    logits: Any = model.apply(params, hidden, method="unembed")
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    loss = -jnp.take_along_axis(log_p, targets[:, None], axis=-1)[:, 0]
    known = log_p[:, : model.config.vocab_size]
    return loss, jnp.argmax(known, axis=-1).astype(jnp.int32), -jnp.max(known, axis=-1)


def expect_positions(model: LanguageModel, argument: str, length: int) -> None:
    """Check that the model has positions for `length` tokens."""
    limit = model.config.max_positions
    expect(not limit or length <= limit, argument, length, f"at most {limit}, the model's positions")


def expect_left_to_right(model: LanguageModel, highest: Any) -> None:
    """Raise an error for mixers that are not causal, or a vocabulary without `highest`, the largest token."""
    config = model.config
    for index in range(config.num_layers):
        layer = f"layer {index}, {config.layer(index).mixer}"
        expect(make_mixer(config, index).causal, "checkpoint", layer, "causal mixers only")
    size = config.vocab_size
    expect(int(highest) < size, "tokenizer", f"token {int(highest)}", f"tokens below {size}")
