"""What models cost: counts of known programs, the papers' formulas and printed numbers, the command."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import based_jax as bj
from based_jax.models import MixerSpec
from based_jax.profile import __main__ as command
from based_jax.profile import count_operations, model_flops, training_flops, training_operations
from based_jax.published.tables import printed_tflops

A, B = jax.ShapeDtypeStruct((3, 5), jnp.float32), jax.ShapeDtypeStruct((5, 7), jnp.float32)

# Rows of Zoology's tables that its own formulas do not give (spec of Zoology, 6.2), or that have none.
MISPRINTED = {"zoology-rwkv4-72m"}
WITHOUT_FORMULA = {"zoology-h3-72m", "zoology-h3-168m", "zoology-h3-357m", "zoology-retnet-152m"}
WITHOUT_FORMULA |= {f"zoology-hyena-window{width}-159m" for width in (64, 256)}
_SIZES = {"full": (166, 351), "learned": (166, 351), "programmatic": (162, 365), "random": (162, 365)}
WITHOUT_FORMULA |= {f"zoology-base-conv-{kind}-{size}m" for kind, sizes in _SIZES.items() for size in sizes}


def test_products_loops_and_branches():
    def product(a, b):
        return a @ b

    assert count_operations(product, A, B).products == 2 * 3 * 5 * 7

    def loop(a, b):
        return lax.scan(lambda carry, _: (carry + a @ b, None), jnp.zeros((3, 7)), length=11)[0]

    counted = count_operations(jax.jit(loop), A, B)
    assert counted.products == 11 * 2 * 3 * 5 * 7
    assert 11 * 21 <= counted.rest <= 11 * 21 + 21

    def branch(a, b):
        return lax.cond(a[0, 0] > 0, lambda: (a @ b).sum(), lambda: jnp.sum(a))

    assert count_operations(branch, A, B).products == 2 * 3 * 5 * 7

    def unknown(a):
        return lax.while_loop(lambda x: x.sum() < 9, lambda x: x * 2, a)

    assert count_operations(unknown, A).unknown_loops == 1


def test_gradients_recomputation_and_transforms():
    def loss(a, b):
        return jnp.sum((a @ b) ** 2)

    once = 2 * 3 * 5 * 7
    assert count_operations(jax.grad(loss, argnums=(0, 1)), A, B).products == 3 * once
    again = count_operations(jax.grad(jax.checkpoint(loss), argnums=(0, 1)), A, B)
    assert again.products == 4 * once

    x = jax.ShapeDtypeStruct((2, 16), jnp.float32)
    assert count_operations(jnp.fft.rfft, x).transforms == 2 * 5 * 16 * 4 / 2
    kernel = jax.ShapeDtypeStruct((4, 1, 3), jnp.float32)
    inputs = jax.ShapeDtypeStruct((2, 4, 9), jnp.float32)
    depthwise = count_operations(
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=4), inputs, kernel
    )
    assert depthwise.products == 2 * 2 * 4 * 9 * 3
    rows, at = jax.ShapeDtypeStruct((8, 3), jnp.float32), jnp.arange(5)
    assert count_operations(lambda x: x.at[at].add(1.0), rows).rest >= 5 * 3
    assert count_operations(lambda x: x.at[at].set(1.0), rows).rest < 5 * 3


@pytest.mark.parametrize("name", printed_tflops())
def test_the_papers_formulas_give_the_printed_numbers(name):
    flops = training_flops(bj.presets.get(name), 2048)
    if name in WITHOUT_FORMULA:
        assert flops is None
    elif name in MISPRINTED:
        assert flops / 1e12 != pytest.approx(printed_tflops()[name], abs=0.0051)
    else:
        assert flops / 1e12 == pytest.approx(printed_tflops()[name], abs=0.0051)  # two printed digits


def test_a_model_is_the_sum_of_its_parts(monkeypatch, capsys):
    config = bj.presets.get("based-tiny")
    numbers = command.profile(config, 64)
    monkeypatch.setattr(command, "profile", lambda *arguments: numbers)
    command.main(["--preset", "based-tiny", "--length", "64"])
    text = capsys.readouterr().out
    parts = sum(block.parameters for block in numbers.blocks)
    norm = config.d_model
    assert parts + config.padded_vocab_size * config.d_model + norm == bj.param_count(config)
    assert f"{bj.param_count(config):,}" in text
    floats = sum(block.state_floats for block in numbers.blocks)
    assert floats == bj.LanguageModel(config).state_size(64)
    assert f"{floats:,} floats per sequence" in text
    head = 2 * 64 * config.d_model * config.padded_vocab_size
    assert numbers.forward.products > head + sum(block.mixer_forward for block in numbers.blocks) / 2
    assert 2.5 < numbers.training.products / numbers.forward.products < 4.5


def test_lengths_that_the_model_has_not():
    short = CONFIG.replace(max_positions=4, positions="learned")
    for length, message in (
        (8, "length = 8: expected at most max_positions = 4"),
        (0, "length = 0: expected an"),
    ):
        for function in (training_operations, model_flops):
            with pytest.raises(ValueError, match=message):
                function(short, length)


def test_a_config_of_ones_own(tmp_path, capsys):
    (tmp_path / "own.json").write_text(CONFIG.to_json())
    command.main(["--preset", str(tmp_path / "own.json"), "--length", "32"])
    assert f"{bj.param_count(CONFIG):,}, embeddings counted once" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["--preset", "gpt-5"], "JSON file or one of"), (["--length", "0"], "length = 0: expected")],
)
def test_mistakes(argv, message, capsys):
    with pytest.raises((SystemExit, ValueError)) as error:
        command.main(argv)
    assert message in f"{error.value}{capsys.readouterr().err}"


CONFIG = bj.ModelConfig(
    vocab_size=64,
    d_model=16,
    schedule="HCH",
    mixers={
        "C": MixerSpec("gated_conv"),
        "H": MixerSpec("base_conv", {"kernel_size": -1, "l_max": 32}),
    },
    mlp_hidden=32,
)


def test_layers_of_a_kind_are_traced_once_and_recomputation_is_not_the_models():
    whole = training_operations(CONFIG, 32)
    assert whole.transforms > 0
    counted = model_flops(CONFIG.replace(remat="block"), 32)
    assert counted == pytest.approx(whole.products + whole.transforms, rel=1e-12)


def test_the_papers_formula_is_taken_where_there_is_one():
    config = bj.presets.get("zoology-attention-73m")
    assert model_flops(config, 2048) == training_flops(config, 2048) == pytest.approx(1.52e12, rel=5e-3)
    assert training_flops(config.replace(mlp_hidden=config.d_model), 2048) is None
    assert training_flops(config.replace(mlp="none"), 2048) is None
