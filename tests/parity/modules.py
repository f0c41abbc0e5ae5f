"""Modules against their fixtures: the parallel pass, its gradients, and what else each kind can show."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from based_jax import mixers, ops
from based_jax.convert import to_torch
from based_jax.convert.references.ops import TorchOp
from based_jax.mixers.contract import Mixer
from based_jax.models import MLP, Block, GatedMLP, LayerNorm, RMSNorm
from based_jax.ops.core.kv_cache import recent
from tests.arrays import array
from tests.parity.cases import Fixture

Comparison = tuple[str, Any, Any]
"""Name of an output, our value, and the part of theirs to compare with (None: all of it)."""


def check_module(fixture: Fixture, module: Any, params: Any) -> None:
    """Compare everything that the fixture holds."""
    # Ordered: JAX sorts plain dicts, and an op takes its arguments in the fixture's order.
    inputs = OrderedDict((name, array(given)) for name, given in fixture.inputs.items())
    cotangent = fixture.arrays.get("in:cotangent", 0.0)  # without one there are no gradients

    def objective(params, inputs):
        y, others = outputs(module, params, inputs, fixture)
        return jnp.sum(y * cotangent), (y, others)

    run = jax.jit(jax.value_and_grad(objective, argnums=(0, 1), has_aux=True))
    (_, (y, others)), (of_params, of_inputs) = run(params, inputs)
    fixture.compare("y", y)
    fixture.compare("y", y, fixture.arrays["y64"])
    for name, ours in others.items():
        if f"out:{name}" in fixture.arrays:
            fixture.compare(name, ours)
    fixture.compare_gradients(
        to_torch(fixture.meta, jax.device_get(of_params))
        | {f"in:{name}": gradient for name, gradient in of_inputs.items()}
    )
    for kind, extras in EXTRAS:
        if isinstance(module, kind):
            for name, ours, theirs in extras(module, params, inputs, fixture):
                fixture.compare(name, ours, theirs)


def outputs(module: Any, params: Any, inputs: dict[str, Any], fixture: Fixture) -> tuple[Any, dict[str, Any]]:
    """The fixture's main output, one array, and what the module computes beside it, by name."""
    match module:
        case mixers.BigBird():  # theirs drew its cells from torch's generator
            return module.apply(params, inputs["x"], cells=fixture.arrays["out:additive_mask"] == 0)[0], {}
        case mixers.SigmoidLookups():
            (y, _), collected = module.apply(params, inputs["x"], mutable=("losses",))
            return y, {"aux_loss": jnp.asarray(mixers.auxiliary_loss(collected))[None]}
        case Mixer():
            return module.apply(params, inputs["x"])[0], {}
        case Block(kind="postnorm"):
            return module.apply(params, inputs["x"])[0], {}
        case Block():
            hidden, residual, _ = module.apply(params, inputs["x"], inputs.get("residual"))
            return hidden + 0.5 * residual, {"hidden": hidden, "residual_out": residual}
        case RMSNorm() | LayerNorm():
            return module.apply(params, inputs["x"] + inputs.get("residual", 0)), {}
        case GatedMLP() | MLP():
            return module.apply(params, inputs["x"]), {}
        case TorchOp():
            result = module.apply(params, *inputs.values())
            return (result[0], {"final_state": result[1]}) if isinstance(result, tuple) else (result, {})
    raise TypeError(f"{type(module).__name__}: the parity tests do not know how to call it")


def continued(module, params, inputs, fixture: Fixture) -> Iterator[Comparison]:
    """Prefill and decoding one token at a time, with the states after both."""
    apply, whole = jax.jit(module.apply), np.asarray(inputs["x"])
    for prefix in ("", "short_"):
        if f"out:{prefix}prefill_y" not in fixture.arrays:
            continue
        length, steps = (fixture.meta[f"{prefix}{name}"] for name in ("prefill_len", "decode_steps"))
        x = whole[:, : length + steps]
        state = module.init_state(*whole.shape[:2])  # of one size, for one program of a step
        y, state = apply(params, x[:, :length], state)
        yield f"{prefix}prefill_y", y, None
        yield from stored_states(module, state, fixture, prefix, "prefill")
        decoded = []
        for t in range(length, length + steps):
            y, state = apply(params, x[:, t : t + 1], state)
            decoded.append(y)
        yield f"{prefix}decode_y", np.concatenate(decoded, axis=1), None
        yield from stored_states(module, state, fixture, prefix, "final")


def stored_states(module, state, fixture: Fixture, prefix: str, when: str) -> Iterator[Comparison]:
    """The states that the fixture holds for this moment, ours in the authors' layout."""
    for name in ("conv_state", "kv_state", "k_state", "kv_cache"):
        key = f"{prefix}{name}_{when}"
        theirs = fixture.arrays.get(f"out:{key}")
        if theirs is None:
            continue
        if name == "conv_state":  # theirs also keeps the oldest input, which no later output sees
            yield key, np.asarray(state.inputs), theirs[:, :, 1:].swapaxes(1, 2)
        elif name == "kv_cache":  # theirs keeps every key, (batch, time, key or value, heads, dim)
            count = min(state.slots, theirs.shape[1])
            k, v, _ = recent(state, count)
            yield key, np.stack([k, v], axis=2), theirs[:, -count:]
        else:
            width = module.feature_dim
            k, kv = np.asarray(state.k), np.asarray(state.kv)
            sums = k[:, :, None, None] if name == "k_state" else kv.swapaxes(2, 3)[:, :, None]
            yield key, ops.symmetric_to_full(array(sums), width), None


def rotary_tables(module, params, inputs, fixture: Fixture) -> Iterator[Comparison]:
    """Cosines and sines: what rotation makes of the first axis of each pair."""
    if "out:rotary_cos" not in fixture.arrays:
        return
    length, pairs = fixture.arrays["out:rotary_cos"].shape
    first = slice(0, None, 2) if module.rotary_interleaved else slice(0, pairs)
    second = slice(1, None, 2) if module.rotary_interleaved else slice(pairs, None)
    x = np.zeros((1, length, 1, 2 * pairs), np.float32)
    x[..., first] = 1
    turned = np.asarray(
        ops.rotary(
            array(x),
            array(np.arange(length)[None]),
            dim=module.rotary_dim,
            base=module.rotary_base,
            interleaved=module.rotary_interleaved,
        )[0, :, 0]
    )
    yield "rotary_cos", turned[:, first], None
    yield "rotary_sin", turned[:, second], None


def features(module, params, inputs, fixture: Fixture) -> Iterator[Comparison]:
    """Zoology's linear attention: mapped queries, the normaliser, and the last outputs by the recurrence."""
    if "out:phi_q" not in fixture.arrays:
        return
    shown, count = fixture.arrays["out:phi_q"].shape[2], fixture.arrays["out:y_linear_view"].shape[1]
    length = inputs["x"].shape[1]
    if module.feature_map == "cosformer":  # theirs takes this call's length, and ours must know it to go on
        module = module.clone(max_length=length)

    @jax.jit
    def compute(params, x):
        bound = module.bind(params)

        def phi(x):
            if module.feature_map == "cosformer":
                return ops.cosformer_features(x, jnp.arange(length)[None], length)
            mapped = bound.phi().features(x)
            is_taylor = module.feature_map == "taylor"
            return ops.symmetric_to_full(mapped, module.feature_dim) if is_taylor else mapped

        phi_q, phi_k = phi(bound.q(x[:1])), phi(bound.k(x[:1]))
        denominator = jnp.einsum("bnhf,bnhf->bhn", phi_q, jnp.cumsum(phi_k, axis=1))
        _, state = module.apply(params, x[:, :-count], module.init_state(x.shape[0]))
        y, _ = module.apply(params, x[:, -count:], state)
        return phi_q.swapaxes(1, 2)[:, :, :shown], denominator, y

    values = compute(params, inputs["x"])
    yield from zip(("phi_q", "denominator_b0", "y_linear_view"), values, (None, None, None), strict=True)


def both_streams(module, params, inputs, fixture: Fixture) -> Iterator[Comparison]:
    """A block's two results without a residual coming in."""
    if "out:hidden_noresidual" in fixture.arrays:
        hidden, stream, _ = jax.jit(module.apply)(params, inputs["x"])
        yield "hidden_noresidual", hidden, None
        yield "residual_out_noresidual", stream, None


def sum_with_residual(module, params, inputs, fixture: Fixture) -> Iterator[Comparison]:
    """The reference norm adds the residual itself; here the block does."""
    if "residual" in inputs:
        yield "res", np.asarray(inputs["x"]) + np.asarray(inputs["residual"]), None


def pattern(module, params, inputs, fixture: Fixture) -> Iterator[Comparison]:
    """What is open of their mask beside window and global tokens must be cells such as ours."""
    theirs = fixture.arrays["out:additive_mask"]
    i, j = np.indices(theirs.shape)
    b = module.block_size
    is_open = (j <= i) & (i - j <= 3 * b) | (j < 2 * b)
    cells = (theirs == 0) & ~is_open
    corners = cells[:-1, :-1] | is_open[:-1, :-1] & (j < i)[:-1, :-1]
    for down, right in ((0, 1), (1, 0), (1, 1)):  # all four pairs of a cell are open
        end = [-1 + down or None, -1 + right or None]
        corners &= (theirs == 0)[down : end[0], right : end[1]]
    covered = np.zeros_like(cells)
    for row, column in np.argwhere(corners):
        covered[row : row + 2, column : column + 2] = True
    assert not np.any(cells & ~covered)
    assert 0 < cells.sum() <= 4 * 3 * b
    yield "additive_mask", np.where(is_open | cells, 0.0, -1e4) - 2e4 * (j > i), None


EXTRAS: tuple[tuple[type, Callable[..., Iterator[Comparison]]], ...] = (
    (Mixer, continued),
    (mixers.Attention, rotary_tables),
    (mixers.SlidingWindow, rotary_tables),
    (mixers.LinearAttention, features),
    (Block, both_streams),
    (RMSNorm, sum_with_residual),
    (mixers.BigBird, pattern),
)
"""What else to compare for modules of a type."""
