"""A whole model trains and decodes through the kernels, in the interpreter, with the numbers of "xla"."""

import dataclasses
import importlib
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import based_jax as bj
from based_jax.data import ByteTokenizer, Document, PackedTokens, train_iterator
from based_jax.models.config import MixerSpec
from based_jax.ops.core.products import in_loop_over_tokens
from based_jax.testing.laws import QUICKLY
from based_jax.training.step import build_programs
from pallas_kernels.launch import interpreted
from pallas_kernels.offline import lowering_for
from tests.arrays import normals
from tests.marks import release_but
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close


def config(implementation: str | None) -> bj.ModelConfig:
    """A small Based: one layer of each kind, two windows long texts."""
    options = {"num_heads": 2}
    mixers = {
        "C": MixerSpec("gated_conv"),
        "L": MixerSpec("linear_attention", {**options, "feature_dim": 8, "implementation": implementation}),
        "S": MixerSpec("sliding_window", {**options, "left": 6, "step_implementation": implementation}),
    }
    return dataclasses.replace(
        bj.presets.get("based-tiny"), d_model=32, schedule="CLS", mixers=mixers, mlp_hidden=32, vocab_size=24
    )


@pytest.fixture(scope="module")
def tokens():
    return jnp.asarray(np.random.default_rng(0).integers(0, 24, size=(2, 70)), jnp.int32)


@pytest.mark.parametrize("packed", release_but([], [False, True]))
def test_whole_rows_train_with_the_plain_kernels(packed):
    """Packed kernels read where each token's segment begins and how many tokens are real: two arrays of
    integers, which the training command's batches ask for only where documents must not see each other."""
    stream = PackedTokens.from_documents([Document("a", "text" * 30)], ByteTokenizer())
    batches = train_iterator(stream, length=32, batch_size=2, seed=0, cross_documents=not packed)
    model = bj.LanguageModel(config(None).replace(schedule="L", vocab_size=257))
    programs = build_programs(model, optax.sgd(0.5), optax.constant_schedule(0.5))
    with lowering_for():
        traced = programs.train.trace(programs.abstract_state, next(batches))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    kernels = re.findall(r"custom_call @__gpu\$xla\.gpu\.triton.*name = \"(\w+)\".* : \((.*)\) ->", text)
    assert {name for name, _ in kernels} >= {"taylor_outputs", "taylor_dq"}, text
    of_tokens = [operands for name, operands in kernels if name.startswith("taylor")]
    assert all(("xi32>" in operands) == packed for operands in of_tokens)


@pytest.mark.release
def test_whole_rows_train_through_the_fused_gates_and_norms(tokens):
    """Gradients are those of XLA's form; a broken token (its embedding is NaN) breaks none before it."""
    model = bj.LanguageModel(config(None).replace(schedule="C"))
    params = jax.tree.map(jnp.asarray, {"params": normals(model.init, tokens, scale=0.05)["params"]})
    tokens = jnp.minimum(tokens[:, :21], 22).at[0, 9].set(23)

    def loss(params):
        hidden, _ = model.apply(params, tokens, method="hidden")
        return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(hidden), hidden, 0))), hidden

    broken = jax.tree.map(lambda x: x.at[23].set(jnp.nan) if x.shape[0] == 24 else x, params)

    def run():
        traced = jax.jit(jax.value_and_grad(lambda params: loss(params), has_aux=True)).trace(params)
        apply = traced.lower().compile(QUICKLY)
        (_, bad), _ = apply(broken)
        return apply(params), np.isfinite(np.asarray(bad)).all(axis=-1), str(traced.jaxpr)

    with interpreted():
        kernels, finite, program = run()
    for name in ("gated_conv_outputs", "gated_conv_gradients", "rms_norm_outputs", "rms_norm_gradient"):
        assert f"name={name}" in program
    plain, finite_plain, _ = run()
    assert_close(kernels[0], plain[0], FLOAT32)
    assert_close(kernels[1], plain[1], FLOAT32_GRADIENT)
    assert np.array_equal(finite, finite_plain)
    assert finite[0, :9].all()
    assert not finite[0, 9:].any()
    assert finite[1].all()


@pytest.mark.release
def test_prefill_and_decoding(tokens):
    """A prompt longer than the window, then token by token until the ring has gone round: as all at once."""

    def start(implementation):
        model = bj.LanguageModel(config(implementation).replace(schedule="LS"))
        return jax.jit(model.apply, compiler_options=QUICKLY), model.init_state(2, max_length=70), model

    plain, empty, model = start("xla")
    params = normals(model.init, tokens, scale=0.05)
    outputs = []
    with interpreted():
        apply, state, _ = start("pallas")
        for first, last in [(0, 20), *((t, t + 1) for t in range(20, 32))]:
            logits, state = apply(params, tokens[:, first:last], state)
            outputs.append(logits)
    assert_close((np.concatenate(outputs, axis=1), state), plain(params, tokens[:, :32], empty), FLOAT32)


@pytest.mark.slow
def test_decoding_one_text_in_bfloat16(tokens, monkeypatch):
    """One row takes the products of `row_products`, which must be those of the modules' own kernels."""
    plain = bj.LanguageModel(config(None).replace(d_model=64, schedule="CS", dtype="bfloat16"))
    params = normals(plain.init, tokens[:1], scale=0.05)
    params = jax.tree.map(lambda x: x.at[23].set(jnp.nan) if x.shape[0] == 24 else x, params)
    tokens = jnp.minimum(tokens[:1, :6], 22)

    def program():
        with in_loop_over_tokens():
            apply = jax.jit(lambda *arrays: plain.apply(*arrays, method="hidden"))
            traced = apply.trace(params, tokens[:, :1], plain.init_state(1))
            return traced.lower().compile(QUICKLY), str(traced.jaxpr)

    def decode(apply, tokens):
        state, outputs = plain.init_state(1), []
        for t in range(4):
            hidden, state = apply(params, tokens[:, t : t + 1], state)
            outputs.append(hidden)
        return jnp.concatenate(outputs, axis=1), state

    with interpreted():
        apply, text = program()
        kernels = decode(apply, tokens)
        broken, _ = decode(apply, tokens.at[0, 2].set(23))
        with monkeypatch.context() as patch:
            module = importlib.import_module("based_jax.ops.short_conv")
            patch.setattr(module, "launched", lambda *arrays, **options: None)
            apart, longer = program()
    assert "rms_norm" not in text, "the products that read norms compute them"
    assert np.isfinite(np.asarray(broken)).all(axis=-1).tolist() == [[True, True, False, False]]
    for name in ("name=row_products", "name=gated_row_product", "name=conv_row_product"):
        assert name in text
    assert ("name=conv_step" in text, "name=conv_step" in longer) == (False, True)
    chex.assert_trees_all_equal(kernels, decode(apart, tokens))
    assert_close(kernels[0], decode(program()[0], tokens)[0], 2 * BFLOAT16)
