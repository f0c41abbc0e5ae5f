"""`python -m benchmarks decode` on tiny models: JSON, tables, growth, crossover, memory."""

import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from based_jax.generate.weights import decoding_weights
from based_jax.models import LanguageModel, MixerSpec, ModelConfig, param_count, presets
from based_jax.models.language_model import param_shapes
from benchmarks import report
from benchmarks.__main__ import main
from benchmarks.decode import command as decode
from benchmarks.decode import models as decode_models
from benchmarks.decode import tables as decode_tables
from benchmarks.decode.models import ATTENTION, BASED, MAMBA, MODELS
from benchmarks.decode.programs import Decoder, Work, decoding, filled, reading
from benchmarks.ops.mixers import placed

QUICK = "--contexts=16,32 --context-batches=1 --steps=2 --lengths=8 --batches=2 --prompt=4 --tokens=2"


def tiny(name: str, size: str = "tiny", dtype: str = "float32") -> ModelConfig:
    """Models that compile in no time, one with a cache that grows and one, for two names, without."""
    attention = MixerSpec("attention", {"num_heads": 1, "implementation": "xla"})
    spec = attention if name == ATTENTION else MixerSpec("short_conv")
    return ModelConfig(16, 8, "M", {"M": spec}, mlp="none", dtype=dtype)


@pytest.mark.slow
def test_every_case_has_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "model_config", tiny)
    flags = [
        *QUICK.split(),
        "--fit-from=8",
        "--samples=1",
        f"--json={tmp_path / 'decode.json'}",
    ]
    assert main(["decode", *flags]) == 0
    result = json.loads((tmp_path / "decode.json").read_text())
    assert (result["benchmark"], result["schema"], result["complete"]) == ("decode", 2, True)
    assert [candidate["name"] for candidate in result["candidates"]] == list(MODELS)
    assert result["candidates"][0]["parameters"] == param_count(tiny(BASED))
    cases = [(row["part"], row["length"], row["candidate"], row["pass"]) for row in result["rows"]]
    assert cases == [
        *(("contexts", n, name, "batch 1") for n in (16, 32) for name in MODELS),
        *(("prefill", 8, name, "prefill") for name in MODELS),
        *(("batches", 2, name, p) for name in MODELS for p in ("first_token", "generate")),
    ]
    for row in result["rows"]:
        assert (row["status"], row["samples"]) == ("measured", 1)
        assert row["seconds_per_token"] == pytest.approx(row["seconds"] / row["tokens"])
        assert row["tokens_per_second"] == pytest.approx(row["batch"] * row["tokens"] / row["seconds"])
    row = result["rows"][0] | {"seconds": None, "status": "skipped", "reason": "needs 99 GiB"}
    text = decode_tables.text(result | {"rows": [row, *result["rows"][1:]]})
    assert "Based, contexts, batch 1 at 16 skipped: needs 99 GiB." in text


def test_growth_and_crossover_of_synthetic_times():
    times = {BASED: lambda n: 3.0, ATTENTION: lambda n: n / 1024, MAMBA: lambda n: (n / 1024) ** 2}
    where = {"part": "prefill", "pass": "prefill", "status": "measured", "reason": None}
    rows = [
        where | {"candidate": name, "length": n, "seconds": time(n), "state_bytes": n**2}
        for name, time in times.items()
        for n in (1024, 2048, 4096, 8192)
    ]
    described = [
        {"name": name, "label": name, "parameters": 1, "schedule": "", "d_model": 1} for name in MODELS
    ]
    settings = {"dtype": "float32", "samples": 1, "prefill_batch": 1}
    results = report.new_report("decode", "", settings, described, []) | {"rows": rows}
    text = decode_tables.text(results | {"summary": {"growth_from_length": 2048}})
    for name, power in zip(MODELS, (0, 1, 2), strict=True):
        assert re.search(rf"^\| {name} .* N\^-?{power}.00 \|$", text, re.M)
    assert (
        "against attention: faster from 4,096 tokens on; against mamba: faster from 2,048 tokens on." in text
    )


def test_a_program_makes_the_tokens_that_the_model_makes():
    """Prompt, then four greedy tokens: the same as reading everything anew for each of them."""
    config = tiny(ATTENTION)
    model, params = LanguageModel(config), decode_models.random_weights(config)
    tokens = jnp.asarray([[3, 1, 4, 1]])
    token, state = reading(config, 8)(params, tokens)
    like_it = placed(filled(jax.eval_shape(lambda: model.init_state(1, 8))), jnp.int32(4))
    chex.assert_trees_all_equal_shapes_and_dtypes(like_it, state)
    assert like_it[0].stream.length == state[0].stream.length
    assert (like_it[0].k != 0).all()
    made, state = decoding(config, 4)(params, token, state, jnp.int32(4))
    text = [*np.ravel(tokens), *np.ravel(token), *np.ravel(made)]
    logits, _ = jax.jit(model.apply)(params, jnp.asarray([text]))
    np.testing.assert_array_equal(text[4:], logits[0, 3:-1, : config.vocab_size].argmax(-1))
    assert int(state[0].stream.length[0]) == 8


def test_a_call_decodes_the_same_positions_however_often_it_is_timed():
    config = tiny(ATTENTION)
    decoder = Decoder(ATTENTION, config, decode_models.random_weights(config))
    program = decoder.program(Work(batch=1, start=4, tokens=4, capacity=8))
    for _ in range(2):
        tokens, state = program.call()
        assert tokens.shape == (4, 1)
        assert int(state[0].stream.length[0]) == 8


@pytest.mark.slow
def test_weights_are_stored_as_for_decoding():
    """All layers, of which one of each kind is traced: as of casting the whole model's parameters."""
    config = decode_models.model_config(BASED, "tiny", "bfloat16")
    params = {"params": dict(param_shapes(config))}
    wanted = jax.eval_shape(lambda params: decoding_weights(LanguageModel(config), params)[1], params)
    weights = decode_models.random_weights(config)
    chex.assert_trees_all_equal_shapes_and_dtypes(weights, wanted)
    matrices = [leaf for leaf in jax.tree.leaves(weights) if leaf.size > config.d_model**2]
    assert {leaf.dtype.name for leaf in matrices} == {"bfloat16"}


def test_tiny_models_have_as_many_parameters():
    counts = {name: param_count(decode_models.model_config(name, "tiny")) for name in MODELS}
    assert max(counts.values()) / min(counts.values()) < 1.08
    assert counts[BASED] == param_count(presets.get("based-tiny"))
