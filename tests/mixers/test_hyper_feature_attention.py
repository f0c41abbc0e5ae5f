"""HyperFeatureAttention: its definition, parameter counts, mixed orders, whole rows."""

import numpy as np
import pytest

from based_jax import mixers
from based_jax.testing import laws
from tests.mixers.built import float64_weights, runner
from tests.ops import oracles
from tests.tolerances import FLOAT32, assert_close

WIDTH = 12


@pytest.fixture(scope="module")
def mixed() -> laws.Runner:
    """Ordinary heads beside heads of order 2, neighbours or not, with products of values."""
    options = {"orders": (2, 1, 2), "value_product": True, "chunk_size": 5}
    return runner("hyper_feature_attention", d_model=WIDTH, **options)


def test_definition_f3_with_mixed_orders(mixed):
    """Definition F.3 and Remark F.5, head by head in float64; causal, scores over sqrt(d_a) each."""
    length, orders, channels = 9, (2, 1, 2), 4
    x = laws.inputs(1, length, WIDTH, 0)
    weights = float64_weights(mixed)
    q, k, v = (np.einsum("bnd,dhc->bnhc", np.float64(x), weights[name]) for name in "qkv")
    positions, visible = np.arange(length)[None], np.tri(length, dtype=bool)
    heads, first = [], 0
    for head, order in enumerate(orders):
        width = channels // order
        scores = np.ones((1, length, length))
        for a in range(order):
            part = slice(a * width, (a + 1) * width)
            turned = [
                oracles.rotary(h[:, :, head : head + 1, part], positions, width, 10000.0, False)
                for h in (q, k)
            ]
            scores = scores * np.einsum("bnc,bmc->bnm", *(h[:, :, 0] for h in turned)) / np.sqrt(width)
        weight = np.where(visible, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        weight /= weight.sum(-1, keepdims=True)
        values = v[:, :, first : first + order].prod(axis=2)
        heads.append(weight @ values)
        first += order
    assert_close(mixed(x)[0], np.einsum("bnhc,hcd->bnd", np.stack(heads, 2), weights["out"]), FLOAT32)


def test_mixed_orders_continue_from_their_caches(mixed):
    x = laws.inputs(laws.ROWS, laws.LENGTH, WIDTH, 1)
    laws.split_law(mixed, x, [6, 1, 6])
    caches = mixed.fresh(1).caches
    assert len(caches) == 3
    floats = sum(cache.k.size + cache.v.size for cache in caches)
    assert floats == mixed.mixer.state_size(laws.MAX_LENGTH) == 2 * WIDTH * laws.MAX_LENGTH


def test_whole_rows_see_the_future():
    """The paper's form without a mask; it packs documents, and has no state."""
    run = runner("hyper_feature_attention", d_model=WIDTH, causal=False, rotary_fraction=0.0)
    x = laws.inputs(1, 6, WIDTH, 2)
    ids = np.array([[0, 0, 0, 1, 1, 1]])
    y, _ = run(x, segment_ids=ids)
    turned = x[:, [2, 1, 0, 3, 4, 5]]  # without positions the first document is a set
    assert_close(run(turned, segment_ids=ids)[0][:, [2, 1, 0, 3, 4, 5]], y, laws.TOLERANCE)
    with pytest.raises(ValueError, match="causal = False: expected True for a state"):
        run.mixer.init_state(1, 4)


def test_an_odd_head_is_of_order_1():
    assert mixers.make("hyper_feature_attention", d_model=7).layout == ((1,), 7)
    assert mixers.make("hyper_feature_attention", d_model=128).layout == ((2, 2), 64)
