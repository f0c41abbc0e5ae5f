"""Training traces: the authors' first AdamW steps, repeated with optax."""

from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from based_jax.convert import to_torch
from based_jax.models import LanguageModel, mqar_backbone
from tests.arrays import array
from tests.parity.cases import OUTPUT_FLOOR, ROUNDINGS, Fixture

IGNORED = -100
"""label of a token that does not count"""

PARAMETER_TOLERANCE = 1e-4
"""Of parameters and their norms after the steps. optax computes AdamW's bias corrections in float32, where
1 - 0.999^t is off by up to 2.7e-5 in the first steps and an update by half of that; torch's are exact."""

STANDARD_ERRORS = 4
"""Tolerance of a mean and a standard deviation over seeds."""


def check_training(fixture: Fixture, model: LanguageModel, params: Any) -> None:
    """Loss, gradient norm and parameter norms of every step; first gradients and last parameters."""
    meta = fixture.meta
    rates = array(fixture.arrays["out:lr"], np.float32)
    # Decay of every parameter, norms and biases too, as in the authors' code.
    adamw = optax.adamw(lambda step: rates[step], 0.9, 0.999, 1e-8, weight_decay=meta["weight_decay"])
    optimizer = optax.flatten(adamw)  # one update of a vector compiles faster than one of each parameter

    def loss_of(params, tokens, labels):
        logits, _ = model.apply(params, tokens)
        counts = labels != IGNORED
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(counts, labels, 0))
        return jnp.sum(jnp.where(counts, losses, 0)) / jnp.sum(counts)

    @jax.jit
    def step(params, state, tokens, labels):
        loss, gradients = jax.value_and_grad(loss_of)(params, tokens, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss, gradients

    inputs, labels = (fixture.arrays[f"in:{name}"].astype(np.int32) for name in ("inputs", "labels"))
    state = jax.jit(optimizer.init)(params)
    losses, gradient_norms, norms = [], [], []
    for index in range(meta["steps"]):
        params, state, loss, gradients = step(params, state, inputs[index], labels[index])
        gradients = jax.device_get(gradients)
        if index == 0:
            first = to_torch(meta, gradients)
        losses.append(loss)
        gradient_norms.append(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradients))))
        norms.append(_norms(to_torch(meta, jax.device_get(params)), meta["param_names"]))

    of_loss = max(ROUNDINGS * meta["err32"]["loss"], OUTPUT_FLOOR)
    of_norms = max(ROUNDINGS * meta["err32"]["norms"], PARAMETER_TOLERANCE)
    for name in ("loss64", "loss32"):
        fixture.compare(name, np.stack(losses), fixture.arrays[f"out:{name}"].astype(np.float32), of_loss)
    fixture.compare("grad_norm64", np.stack(gradient_norms))
    for column in range(len(meta["param_names"])):
        theirs = fixture.arrays["out:param_norms64"][:, column]
        fixture.compare("param_norms64", np.stack(norms)[:, column], theirs, of_norms)
    for group, tensors in (("grad1", first), ("final", to_torch(meta, jax.device_get(params)))):
        for name, theirs in fixture.group(group).items():
            ours = tensors[name]
            if name.endswith("Wqkv.bias"):
                ours, theirs = _without_keys(ours), _without_keys(theirs)
            usual = PARAMETER_TOLERANCE if group == "final" else None
            fixture.compare(f"grad:{group}:{name}", ours, theirs, meta.get("array_tolerance", usual))
    fixture.errors["lr"] = 0.0  # an input here
    check_initialisation(fixture, model)


def check_initialisation(fixture: Fixture, model: LanguageModel) -> None:
    """Compare mean and standard deviation of each parameter over many seeds with the authors', if stored.

    The model that is initialised is that of the studies with the mixer of `model`.
    """
    stored = fixture.group("init")
    if not stored:
        return
    config, draws = model.config, fixture.meta["init_draws"]
    (spec,) = config.mixers.values()
    longest = fixture.meta["model"]["mixer"]["kwargs"]["l_max"]
    backbone = mqar_backbone(spec.mixer, config.d_model, config.vocab_size, longest, options=spec.options)
    init = jax.jit(jax.vmap(lambda key: LanguageModel(backbone).init(key, jnp.zeros((1, 1), jnp.int32))))
    params = jax.device_get(nn.meta.unbox(init(jax.random.split(jax.random.key(0), draws))))
    ours = [to_torch(fixture.meta, jax.tree.map(itemgetter(i), params)) for i in range(draws)]
    for name, (mean, deviation) in stored.items():
        values = np.stack([tensors[name] for tensors in ours])
        # Independent elements: the standard errors of both sides' estimates. Constants have none.
        error = STANDARD_ERRORS * deviation * np.sqrt(2 / values.size)
        np.testing.assert_allclose(values.mean(), mean, rtol=1e-6, atol=error + 1e-6, err_msg=name)
        np.testing.assert_allclose(values.std(), deviation, rtol=1e-6, atol=error + 1e-6, err_msg=name)


def _without_keys(bias: Any) -> np.ndarray:
    """A packed bias without the keys: softmax ignores those, so Adam follows mere rounding there."""
    q, _, v = np.split(np.asarray(bias), 3)
    return np.concatenate([q, v])


def _norms(tensors: dict[str, Any], names: list[str]) -> np.ndarray:
    return np.array([np.linalg.norm(tensors[name]) for name in names])
