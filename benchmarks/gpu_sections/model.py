"""Section `model`: tokens per second of a whole Based model, with and without the kernels.

Prefill reads a prompt and keeps the state; decoding makes tokens one by one, greedily, in one program.
Weights are random, and stored as for decoding (`generate.weights`): a step reads bfloat16, not float32.
"""

from functools import cache, partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from based_jax.models import LanguageModel, MixerSpec, ModelConfig
from benchmarks.decode_models import BASED, model_config, random_weights
from benchmarks.gpu_sections.session import Session, Step
from benchmarks.gpu_sections.stopwatch import Candidate, compare, jitted

PREFILL = ((4, 4096), (1, 16384))
"""(batch, tokens)"""

DECODE = (128, 1)
"""Batches."""

NEW_TOKENS = 16


def with_implementation(config: ModelConfig, name: str | None) -> ModelConfig:
    """Return the model with implementation `name` for every op that has kernels; None picks the best."""
    options = {"linear_attention": "implementation", "sliding_window": "step_implementation"}
    mixers = {
        letter: MixerSpec(spec.mixer, {**spec.options, options[spec.mixer]: name})
        if spec.mixer in options
        else spec
        for letter, spec in config.mixers.items()
    }
    return config.replace(mixers=mixers)


def steps(session: Session) -> list[Step]:
    """List prefill and decoding."""
    quick = session.sizing.quick
    # In this order: the second uses the parameters that the first has made.
    load = cache(partial(_load, quick))
    prefill, decode = (((1, 24),), (1,)) if quick else (PREFILL, DECODE)
    return [
        *(Step(f"prefill B{b} N{n}", partial(_prefill, load, b, n)) for b, n in prefill),
        *(Step(f"decode B{b}", partial(_decode, load, b)) for b in decode),
    ]


def _load(quick: bool) -> tuple[dict[str, Any], Any]:
    """Return the models by name of the implementation, and their parameters."""
    config = model_config(BASED, "tiny" if quick else "360m", "bfloat16")
    if quick:
        config = config.replace(schedule="LS")
    names: tuple[str | None, ...] = (None, "xla")
    models = {str(name): LanguageModel(with_implementation(config, name)) for name in names}
    return models, random_weights(config)


def _prefill(load: Any, batch: int, length: int, session: Session) -> None:
    models, params = load()
    tokens = jnp.ones((batch, length), jnp.int32)

    def run(model: Any, params: Any, tokens: Any) -> Any:
        h, state = model.apply(params, tokens, model.init_state(batch, length), method="hidden")
        return model.apply(params, h[:, -1], method="unembed"), state

    _compare(session, f"prefill B{batch} N{length}", models, run, [params, tokens], batch * length)


def _decode(load: Any, batch: int, session: Session) -> None:
    models, params = load()
    steps = 2 if session.sizing.quick else NEW_TOKENS

    def run(model: Any, params: Any, token: Any) -> Any:
        def step(carry: Any, _: None) -> Any:
            token, state = carry
            logits, state = model.apply(params, token[:, None], state)
            return (jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), state), token

        return lax.scan(step, (token, model.init_state(batch, 64)), length=steps)[1]

    token = jnp.ones((batch,), jnp.int32)
    _compare(session, f"decode B{batch}", models, run, [params, token], batch * steps)


def _compare(session: Session, step: str, models: Any, run: Any, arguments: list[Any], tokens: int) -> None:
    rows = [
        Candidate(name, partial(jitted, partial(run, model), arguments), {"tokens": tokens}, ours=True)
        for name, model in models.items()
    ]
    for name, seconds in compare(session, step, rows).items():
        session.say(f"{step}: implementation {name}: {tokens / seconds:,.0f} tokens/s")
