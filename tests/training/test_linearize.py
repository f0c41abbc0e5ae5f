"""Linearized attention: what it keeps of the original, what is trained, and the command that does it."""

import functools
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

import based_jax as bj
from based_jax.data import load_tokenizer
from based_jax.mixers.linearized_attention import MAPS
from based_jax.models import MixerSpec
from based_jax.training.commands import linearize
from based_jax.training.linearization import (
    linearized,
    losses_in_full,
    new_layers,
    train_maps,
    transfer_losses,
)
from based_jax.training.optimizer import OptimizerConfig, make_optimizer
from based_jax.training.run.metrics import read_metrics
from based_jax.training.step import next_token_losses
from tests.arrays import array, normals
from tests.commands import refused
from tests.tolerances import FLOAT32, assert_close
from tests.training.runs import losses
from tests.training.test_hosts import CLOSE, finish, together

WIDE = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 6, "qk_norm": True, "use_gate": True}
STEPS = 6
LAYERS = frozenset({"layers_0", "layers_2"})
TOKENS = array(np.random.default_rng(2).integers(0, 257, (2, 12)), np.int32)


@pytest.fixture(scope="module")
def original(tiny_config):
    """A model with two kinds of full attention, a window, and attention that is sharper than at random."""
    mixers = {
        "A": MixerSpec("attention", {"num_heads": 2, "dropout": 0.5}),
        "B": MixerSpec("attention", WIDE),
        "S": tiny_config.mixers["S"],
    }
    model = bj.LanguageModel(tiny_config.replace(schedule="ASB", mixers=mixers))
    params = jax.jit(model.init)(jax.random.key(0), TOKENS)

    def sharper(path, leaf):
        return 30 * leaf if path[-2].key in ("q", "k", "v") else leaf

    return model, jax.tree_util.tree_map_with_path(sharper, nn.meta.unbox(params))


@pytest.fixture(scope="module")
def pretrained(original, tmp_path_factory):
    directory = tmp_path_factory.mktemp("original")
    bj.save_pretrained(directory, *original)
    load_tokenizer("byte").save(directory)
    return directory


@pytest.fixture(scope="module")
def settings(pretrained, text):
    return {
        "init_from": str(pretrained),
        **{"data": str(text), "held_out": 0.2, "window": 4, "steps": STEPS, "batch_size": 4},
        **{"log_every": 1, "eval_every": 3, "checkpoint_every": 2},
        "optimizer": OptimizerConfig(learning_rate=3e-2, weight_decay=0.0),
    }


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("linearized")
    return workdir, linearize.train(linearize.LinearizeConfig(workdir=workdir, **settings))


def with_maps(config, params, layers=None, **options):
    """Return the linearized model, and its parameters: fresh maps and the given weights."""
    model = bj.LanguageModel(linearized(config, layers, **options))
    fresh = nn.meta.unbox(normals(model.init, TOKENS))
    return model, unflatten_dict(flatten_dict(fresh) | flatten_dict(params))


@functools.partial(jax.jit, static_argnums=0)
def transferred(model, params, batch):
    """Sum and count of the losses, and the gradients of the sum."""

    def losses(params):
        return transfer_losses(model, params, batch, LAYERS)[0]

    (total, count), grads = jax.value_and_grad(losses, has_aux=True)(params)
    return total, count, grads


def test_options_of_the_original_stay(original):
    config = linearized(original[0].config, None, left=3)
    specs = [config.mixers[letter] for letter in config.schedule]
    assert [spec.mixer for spec in specs] == [
        *("linearized_attention", "sliding_window", "linearized_attention")
    ]
    assert dict(specs[0].options) == {"num_heads": 2, "left": 3}
    assert dict(specs[2].options) == {**WIDE, "left": 3}
    one = linearized(original[0].config, [2], left=3)
    assert one.mixers[one.schedule[0]].mixer == "attention"


@pytest.mark.release
def test_texts_within_the_window_have_the_original_logits(original):
    model, params = original
    changed, with_fresh = with_maps(model.config, params, left=8)
    wanted = jax.jit(model.apply)(params, TOKENS[:, :9])[0]
    assert_close(jax.jit(changed.apply)(with_fresh, TOKENS[:, :9])[0], wanted, FLOAT32)


def test_the_loss_compares_each_layer_alone(original):
    """By hand: both mixers at the inputs that the original's layers have; padding does not count."""
    model, params = original
    changed, params = with_maps(model.config, params, left=2)
    mask = np.arange(12) < [[12], [7]]
    batch = {"inputs": TOKENS, "targets": TOKENS, "mask": jnp.asarray(mask)}

    @jax.jit
    def inputs_of(params):
        inputs = {}

        def record(following, args, kwargs, context):
            if context.method_name == "mix":
                inputs[context.module.path[0]] = args[0]
            return following(*args, **kwargs)

        with nn.intercept_methods(record):
            model.apply(params, TOKENS, mask=batch["mask"], method="hidden")
        return inputs

    inputs = inputs_of(params)
    shares = []
    for number in (0, 2):
        own = {"params": params["params"][f"layers_{number}"]["mixer"]}
        outputs = []
        for config in (changed.config, model.config):
            spec = config.mixers[config.schedule[number]]
            mixer = bj.mixers.make(spec.mixer, d_model=config.d_model, **spec.options)
            outputs.append(np.asarray(mixer.apply(own, inputs[f"layers_{number}"], mask=batch["mask"])[0]))
        y, target = (output[mask].astype(float) for output in outputs)
        shares.append(np.square(y - target).sum() / np.square(target).sum())
    assert min(shares) > 1e-3
    total, count, _ = transferred(changed, params, batch)
    assert count == mask.sum()
    assert_close(total / count, np.mean(shares), FLOAT32)


def test_only_the_maps_have_gradients_and_moments(original):
    changed, params = with_maps(original[0].config, original[1], left=2)
    batch = {"inputs": TOKENS, "targets": TOKENS, "mask": jnp.ones(TOKENS.shape, bool)}
    grads = flatten_dict(transferred(changed, params, batch)[2])
    assert {path[-1] for path, leaf in grads.items() if np.any(leaf)} == set(MAPS)
    state = train_maps(make_optimizer(OptimizerConfig(), 10), LAYERS).init(params)
    sizes = [sum(leaf.size for path, leaf in grads.items() if path[-1] in MAPS)] * 2  # two moments
    assert sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim) == sum(sizes)


@pytest.mark.slow
def test_layers_that_were_linearized_before_stay(original):
    before, params = with_maps(original[0].config, original[1], [0], left=1)
    changed, params = with_maps(before.config, params, left=2)
    layers = new_layers(changed.config, before.config)
    assert layers == {"layers_2"}
    batch = {"inputs": TOKENS[:, :-1], "targets": TOKENS[:, 1:]}
    wanted = next_token_losses(before, params, batch)[0]
    assert_close(losses_in_full(changed, params, batch, layers)[0], wanted, FLOAT32)

    def loss(params):
        return transfer_losses(changed, params, batch, layers)[0][0]

    grads = flatten_dict(jax.jit(jax.grad(loss))(params))
    assert {path[1] for path, leaf in grads.items() if np.any(leaf)} == layers
    state = train_maps(make_optimizer(OptimizerConfig(), 10), layers).init(params)
    moments = [path for path, leaf in jax.tree_util.tree_leaves_with_path(state) if leaf.ndim]
    assert len(moments) == 2 * len(MAPS)


@pytest.mark.release
def test_a_run_trains_the_maps_and_saves_the_model(finished, original, settings):
    workdir, outcome = finished
    lines = read_metrics(workdir / "metrics.jsonl")
    assert [line["step"] for line in lines if "eval_perplexity" in line] == [3, 6]
    assert losses(workdir)[-1] < losses(workdir)[0]
    model, params = bj.load_pretrained(workdir)
    assert model.config.mixers[model.config.schedule[0]].options["left"] == settings["window"] - 1
    chex.assert_trees_all_equal(params, outcome.state.params)
    kept, before = flatten_dict(params), flatten_dict(original[1])
    chex.assert_trees_all_equal({path: kept[path] for path in before}, before)
    assert ["eval_perplexity_in_full" in line for line in lines if "eval_loss" in line] == [False, True]
    changed = lines[-1]["eval_perplexity"] / lines[-1]["eval_perplexity_in_full"]
    assert 0.5 < changed < 2
    assert changed != 1
    card = (workdir / "model/README.md").read_text()
    assert "| linearized to | exp_half, window 4 |" in card
    assert "error_of_attention" in card


@pytest.mark.release
def test_a_run_that_was_stopped_resumes_bit_exactly(finished, settings, tmp_path):
    workdir, outcome = finished
    copy = shutil.copytree(workdir, tmp_path / "run")
    shutil.rmtree(copy / f"checkpoints/{STEPS}")
    config = linearize.LinearizeConfig(workdir=copy, **settings, resume=True)
    again = linearize.train(config)
    chex.assert_trees_all_equal(again.state.params, outcome.state.params)


@pytest.mark.slow
def test_two_processes_linearize_as_one(finished, settings, tmp_path):
    workdir, outcome = finished
    own = ["--learning-rate", "3e-2", "--warmup", str(OptimizerConfig().warmup)]
    finish(together(settings, tmp_path, 2, 1, *own, trainer="linearize"))
    np.testing.assert_allclose(losses(tmp_path), losses(workdir), **CLOSE)
    ours, theirs = (read_metrics(path / "metrics.jsonl")[-1] for path in (tmp_path, workdir))
    assert_close(ours["eval_perplexity_in_full"], theirs["eval_perplexity_in_full"], FLOAT32)
    params = bj.load_pretrained(tmp_path)[1]
    assert_close(params, outcome.state.params, FLOAT32)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to", "identity"], "to = 'identity': expected one of"),
        (["--window", "0"], "window = 0: expected"),
        (["--window", "32"], "window = 32: expected below length = 32"),
        (["--length", "100000"], "expected at least 100001 tokens"),
        (["--layers", "1"], "layers = 1: expected layers with full attention: 0, 2"),
        (["--layers", "a"], "layers = 'a': expected numbers of layers"),
        (["--layers", ""], "layers = '': expected numbers of layers"),
        (["--layers", "0,0"], "layers = '0,0': expected each layer once"),
        (["--layers", "²"], "layers = '²': expected numbers of layers"),
        (["--from", "nowhere"], "nowhere"),
        (["--optimizer", "muon"], "optimizer = 'muon': expected adamw"),
        (["--weight-decay", "0.1"], "weight_decay = 0.1: expected 0"),
        (["--feature-dim", "0"], "feature_dim = 0: expected"),
    ],
)
def test_wrong_flags(flags, message, pretrained, text, tmp_path, capsys):
    command = ["--from", pretrained, "--data", text, "--workdir", tmp_path / "run", "--window", 8, *flags]
    assert message in refused(linearize.PROG, linearize.main, command, capsys)
    assert not (tmp_path / "run/config.json").exists()
