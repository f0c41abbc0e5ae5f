"""Sections `train`, `generate`, `prefill`: whole models of equal size, Based, a Transformer++ and a Mamba.

A training step has 16 rows of 2,048 tokens. A prompt is read into an empty state. Tokens are made greedily in
one program, after half of the 1,024 tokens for which the state has capacity besides a prompt of 128: the time
of a step grows linearly with the tokens before it, so this is the mean of all 1,024. Parameters are random,
and stored as each use has them: in float32 for training, for decoding in bfloat16 (`generate.weights`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax.mixers.contract import head_layout
from based_jax.models import ModelConfig
from benchmarks.decode import models
from benchmarks.decode.programs import Work, decode_arguments, decoding, filled, reading
from benchmarks.gpu.sections.session import Session, Step, UnavailableError, require
from benchmarks.gpu.sections.stopwatch import Candidate, Prepared, jitted

ROWS, LENGTH = 16, 2048
"""Of a training step."""

SERIES = 4
"""Training steps of a sample, without waits in between, as a trainer makes them."""

GENERATE = (("1b", 128), ("360m", 128), ("360m", 1))
"""(size, batch)"""

PREFILL = (("1b", 128, 128), ("360m", 1, 16384), ("360m", 1, 65536))
"""(size, batch, tokens)"""

DECODED = Work(batch=1, start=128 + 512, tokens=128, capacity=128 + 1024)


def train_steps(session: Session) -> list[Step]:
    """List a training step of the models."""
    rows, length = (1, 64) if session.quick else (ROWS, LENGTH)
    what = f"B{rows} N{length}"
    train = partial(_training, rows, length)
    return [_step(session, "360m", what, train, rows * length, (models.BASED, models.CUDNN, models.MAMBA))]


def generate_steps(session: Session) -> list[Step]:
    """List making tokens, by size and batch."""
    work = DECODED._replace(tokens=2) if session.quick else DECODED
    steps = []
    for size, batch in GENERATE[-1:] if session.quick else GENERATE:
        prepare = partial(_decoding, work._replace(batch=batch))
        steps.append(_step(session, size, f"B{batch}", prepare, batch * work.tokens))
    return steps


def prefill_steps(session: Session) -> list[Step]:
    """List reading prompts, by their length."""
    cases = [("360m", 1, 24)] if session.quick else PREFILL
    return [
        _step(session, size, f"B{rows} N{n}", partial(_reading, rows, n), rows * n) for size, rows, n in cases
    ]


def _step(
    session: Session,
    size: str,
    what: str,
    prepare: Callable[[ModelConfig, Any, Callable[[], Any]], Prepared],
    tokens: int,
    names: tuple[str, ...] = (models.BASED, models.CUDNN),
) -> Step:
    def config(name: str) -> ModelConfig:
        if session.quick:
            return models.one_of_each(models.model_config(name, "tiny", "bfloat16"))
        return models.model_config(name, size, "bfloat16")

    amounts = {"tokens_per_second": tokens}

    def candidates(_: Session) -> list[Candidate]:
        weights = cache(models.random_weights)

        def prepared(name: str) -> Prepared:
            if name == models.CUDNN:
                (spec,) = config(name).mixers.values()
                heads, _, width = head_layout(config(name).d_model, spec.options["num_heads"])
                token = jax.ShapeDtypeStruct((1, 1, heads, width), "bfloat16")
                require("softmax_attention", "cudnn", token, token, token)
            # With attention by cuDNN, making the weights would need cuDNN, too.
            own = config(models.ATTENTION if name == models.CUDNN else name)
            return prepare(config(name), models.abstract_weights(own), partial(weights, own))

        return [
            Candidate(name, partial(prepared, name), ours=name == models.BASED, amounts=amounts)
            for name in names
        ]

    return Step(f"{size} {what}", candidates=candidates, facts={"size": size})


def _training(rows: int, length: int, config: ModelConfig, *_: Any) -> Prepared:
    try:
        from benchmarks.gpu.static.programs import training
    except ImportError as error:
        raise UnavailableError(f"needs the packages of the trainer ({error})") from None
    step, shapes = training(config, rows, length)

    def make() -> list[Any]:
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[0])
        tokens = np.random.default_rng(0).integers(0, config.vocab_size, (rows, length + 1), np.int32)
        batch = {"inputs": jnp.asarray(tokens[:, :-1]), "targets": jnp.asarray(tokens[:, 1:])}
        return [replace(state, params=models.random_like(shapes[0].params)), batch]

    return replace(jitted(step, shapes, {0: 0}, make=make), series=SERIES)


def _decoding(work: Work, config: ModelConfig, params: Any, weights: Callable[[], Any]) -> Prepared:
    shapes = decode_arguments(config, params, work)

    def make() -> list[Any]:
        return [weights(), *shapes[1:2], filled(shapes[2]), shapes[3]]

    return jitted(decoding(config, work.tokens), shapes, {2: 1}, make=make)


def _reading(
    rows: int, length: int, config: ModelConfig, params: Any, weights: Callable[[], Any]
) -> Prepared:
    tokens = jnp.ones((rows, length), jnp.int32)
    return jitted(reading(config, length), [params, tokens], make=lambda: [weights(), tokens])
