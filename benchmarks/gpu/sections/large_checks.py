"""Checks of more than one kernel call: addresses beyond 32 bits, and a model that trains and decodes."""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pallas_kernels
from based_jax.models import MixerSpec, ModelConfig
from benchmarks.gpu.sections.checks import TOLERANCES, Check, Outcome, Program, error


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


@dataclass(frozen=True)
class Addresses(Check):
    """The last row of arrays of more than 2^31 elements must equal the row computed alone."""

    rows: int = 33
    length: int = 65536
    heads: int = 16

    @property
    def name(self) -> str:
        return f"addresses R{self.rows} N{self.length}"

    def tiny(self) -> "Addresses":
        return replace(self, rows=2, length=130, heads=1)

    def program(self) -> Program:
        def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            shape = (self.rows, self.length, self.heads)
            q = jax.random.normal(key, (*shape, 16), jnp.bfloat16)
            v = jax.random.normal(key, (*shape, 64), jnp.bfloat16)
            alone = pallas_kernels.taylor_attention(q[-1:], q[-1:], v[-1:], block=self.length)
            return pallas_kernels.taylor_attention(q, q, v)[-1:], alone

        def judge(compiled: jax.stages.Compiled) -> Outcome:
            y, alone = jax.block_until_ready(compiled(jax.random.key(0)))
            expected = np.asarray(alone.astype(jnp.float32), np.float64)
            return Outcome({"y": error(expected, y)}, TOLERANCES["bfloat16", None], True)

        return Program(jax.jit(run).lower(jax.random.key(0)), judge)


@dataclass(frozen=True)
class Model(Check):
    """based-tiny, trained for three steps on packed rows and then decoding, must match plain JAX."""

    schedule: str | None = None
    length: int = 300
    steps: int = 3
    tokens: int = 10

    @property
    def name(self) -> str:
        return "model trains and decodes"

    def tiny(self) -> "Model":
        return replace(self, schedule="LS", length=40, steps=1, tokens=2)

    def program(self) -> Program:
        rng = np.random.default_rng(0)
        tokens = jnp.asarray(rng.integers(0, 256, (2, self.length + 1)), jnp.int32)

        def both(tokens: jax.Array) -> Any:
            return [self._trained(tokens, implementation) for implementation in (None, "xla")]

        def judge(compiled: jax.stages.Compiled) -> Outcome:
            ours, plain = jax.block_until_ready(compiled(tokens))
            expected = [np.asarray(x.astype(jnp.float32), np.float64) for x in plain]
            losses, logits = (error(x, y) for x, y in zip(expected, ours, strict=True))
            fell = {} if ours[0][-1] < ours[0][0] or self.steps < 2 else {"loss does not fall": float("inf")}
            # Gradients have TF32 operands; the logits pass through a whole model in addition.
            return Outcome({"losses": losses, "logits": logits, **fell}, TOLERANCES["bfloat16", None], True)

        return Program(jax.jit(both).lower(tokens), judge)

    def _trained(self, tokens: jax.Array, implementation: str | None) -> tuple[jax.Array, jax.Array]:
        """Return losses of the training steps, and the logits of decoding with the trained model."""
        import based_jax as bj

        config = with_implementation(bj.presets.get("based-tiny"), implementation)
        config = dataclasses.replace(
            config, max_length=self.length, schedule=self.schedule or config.schedule
        )
        model = bj.LanguageModel(config)
        segments = (jnp.arange(self.length) // (self.length // 2 - 20))[None].repeat(2, axis=0)
        params = model.init(jax.random.key(0), tokens[:, :8])

        def loss(params: Any) -> jax.Array:
            logits, _ = model.apply(params, tokens[:, :-1], segment_ids=segments)
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
            return -picked.mean()

        def step(params: Any, _: None) -> tuple[Any, jax.Array]:
            value, gradients = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

        params, losses = lax.scan(step, params, length=self.steps)
        prompt = self.length // 2
        logits, state = model.apply(params, tokens[:, :prompt], model.init_state(2, self.length))

        def decode(state: Any, token: jax.Array) -> tuple[Any, jax.Array]:
            logits, state = model.apply(params, token[:, None], state)
            return state, logits[:, 0]

        _, more = lax.scan(decode, state, tokens[:, prompt : prompt + self.tokens].T)
        return losses, jnp.concatenate([logits[None, :, -1], more])


def large_checks() -> list[Check]:
    """List them."""
    return [Model(), Addresses()]
