"""What a kernel does not take is refused by name: the argument, its value and what was expected."""

import functools
import importlib

import jax
import jax.numpy as jnp
import pytest

import pallas_kernels
from pallas_kernels import Rotary


def of(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


ints = functools.partial(of, dtype="int32")

STEP = {"history": of(1, 2, 8), "age": ints(1), "taps": of(3, 8)}
VALID = {
    "taylor_attention": {"q": of(1, 4, 2, 8), "k": of(1, 4, 2, 8), "v": of(1, 4, 2, 3)},
    "taylor_step": {
        **{"q": of(2, 3, 4), "k": of(2, 3, 4), "v": of(2, 3, 5)},
        **{"kv": of(2, 3, 15, 5), "z": of(2, 3, 15)},
    },
    "window_attention": {"q": of(2, 3, 4, 8), "k": of(2, 3, 2, 8), "v": of(2, 3, 2, 5), "left": 2},
    "window_step": {
        **{"q": of(2, 4, 6), "k": of(2, 2, 6), "v": of(2, 2, 3)},
        **{"k_ring": of(2, 5, 2, 6), "v_ring": of(2, 5, 2, 3), "length": ints(2)},
    },
    "conv_step": {"inner": of(4, 2, 8), "history": of(4, 2, 8), "age": ints(4), "taps": of(3, 8)},
    "gated_conv": {"inner": of(2, 5, 2, 8), "taps": of(3, 8), "bias": of(2, 8)},
    "add_rms_norm": {"stream": of(2, 3, 8), "branch": of(2, 3, 8), "scale": of(8)},
    "selective_scan": {
        **{"x": of(1, 3, 32), "dt": of(1, 3, 32), "A": of(32, 4), "B": of(1, 3, 4), "C": of(1, 3, 4)},
        **{"D": of(32), "h": of(1, 32, 4)},
    },
    "linear_recurrence": {
        **{"q": of(1, 3, 2, 4), "k": of(1, 3, 2, 4), "v": of(1, 3, 2, 5), "beta": of(1, 3, 2)},
        **{"log_decay": of(1, 3, 2), "kv": of(1, 2, 4, 5)},
    },
    "row_products": {"x": of(128), "matrices": (of(8, 128), of(8, 128))},
    "gated_row_product": {"x": of(128), "matrix": of(2, 8, 128)},
    "conv_row_product": {"x": of(128), "matrix": of(2, 8, 128), **STEP},
    "softmax_loss": {"logits": of(2, 8), "targets": ints(2), "weights": of(2)},
}

REFUSED = {
    "taylor_attention": [
        ({"k": of(1, 4, 2, 9)}, r"shape of k = \(1, 4, 2, 9\): expected q's, \(1, 4, 2, 8\)"),
        ({"v": of(1, 5, 2, 3)}, r"shape of v = \(1, 5, 2, 3\): expected \(B, N, H\) of q"),
        ({"q": of(1, 4, 2, 40)}, "the last axis of q is 40 long; the kernel takes up to 32"),
        ({"q": of(4, 8)}, "q has 2 axes; the kernel takes 4"),
        ({"q": of(1, 0, 2, 8)}, "no empty axis"),
        ({"q": ints(1, 4, 2, 8)}, "int32"),
        ({"starts": ints(1, 3)}, r"shape of starts = \(1, 3\): expected \(1, 4\)"),
        ({"counts": ints(2)}, r"shape of counts = \(2,\): expected \(1,\)"),
        ({"initial_state": (of(1, 2, 44, 3), of(1, 2, 45))}, r"initial_state\[0\] = .* \(1, 2, 45, 3\)"),
        ({"block": 0}, "block = 0: expected at least 1 token"),
        ({"precision": "low"}, "precision = 'low'"),
    ],
    "taylor_step": [
        ({"q": of(2, 3, 1, 4)}, "q has 4 axes; the kernel takes 3"),
        ({"q": of(2, 3, 33)}, "the last axis of q is 33 long; the kernel takes up to 32"),
        ({"v": of(2, 3, 257)}, "the last axis of v is 257 long"),
        ({"v": of(2, 3, 0)}, "no empty axis"),
        ({"v": ints(2, 3, 5)}, "v has dtype int32"),
        ({"k": of(2, 3, 5)}, r"shape of k = \(2, 3, 5\): expected \(2, 3, 4\)"),
        ({"kv": of(2, 3, 21, 5)}, r"shape of kv = \(2, 3, 21, 5\): expected \(2, 3, 15, 5\)"),
        ({"z": ints(2, 3, 15)}, "dtype of z = 'int32': expected float32, bfloat16 or float16"),
        ({"variant": {"rows": 48}}, "rows = 48: expected a power of two"),
    ],
    "window_attention": [
        ({"q": of(2, 3, 8)}, "q has 3 axes; the kernel takes 4"),
        ({"q": of(2, 3, 4, 129)}, "the last axis of q is 129 long"),
        ({"q": of(2, 3, 5, 8)}, "number of query heads = 5: expected a multiple of 2"),
        ({"k": of(2, 3, 2, 7)}, r"shape of k = \(2, 3, 2, 7\): expected \(2, 3, 2, 8\)"),
        ({"v": of(2, 4, 2, 5)}, r"shape of v = \(2, 4, 2, 5\): expected \(2, 3, 2, 5\)"),
        ({"v": of(2, 3, 2, 5, dtype="bfloat16")}, "the kernels take one for all"),
        ({"left": 128}, "left = 128: expected 0 to 127 past keys"),
        ({"left": -1}, "left = -1"),
        ({"starts": ints(2, 4)}, r"shape of starts = \(2, 4\): expected \(2, 3\)"),
        ({"counts": ints(3)}, r"shape of counts = \(3,\): expected \(2,\)"),
        ({"variants": {"queries": 24}}, "queries = 24: expected a power of two from 16 on"),
    ],
    "window_step": [
        ({"q": of(2, 1, 4, 6)}, "q has 4 axes; the kernel takes 3"),
        ({"q": of(2, 4, 257)}, "the last axis of q is 257 long"),
        ({"q": of(2, 5, 6)}, "number of query heads = 5: expected a multiple of 2"),
        ({"k": of(2, 2, 7)}, r"shape of k = \(2, 2, 7\): expected \(2, 2, 6\)"),
        ({"v": ints(2, 2, 3)}, "v has dtype int32"),
        ({"k_ring": of(2, 2, 6)}, "shape of k_ring"),
        ({"v_ring": of(2, 4, 2, 3)}, r"shape of v_ring = \(2, 4, 2, 3\): expected \(2, 5, 2, 3\)"),
        ({"length": ints(3)}, r"shape of length = \(3,\): expected \(2,\)"),
        ({"start": of(2)}, "dtype of start = 'float32': expected int32 or int64"),
        ({"rotary": Rotary(7)}, "rotary.dim = 7: expected 1 to the head width 6"),
        ({"variant": {"slots": 3}}, "slots = 3: expected a power of two"),
        ({"variant": {"queries": 0}}, "queries = 0: expected at least 1"),
    ],
    "conv_step": [
        ({"taps": of(1, 8)}, "conv_step: a convolution has 1 taps; the kernel takes 2 to 8"),
        ({"history": of(4, 3, 8)}, "shape of history"),
        ({"age": of(4, 2, 8)}, "shape of age"),
        ({"inner": [[1.0]]}, "inner is a list; the kernel takes arrays"),
    ],
    "gated_conv": [
        ({"taps": of(5, 8)}, "gated_conv: a convolution has 5 taps; the kernel takes 1 to 4"),
        ({"taps": of(3, 4)}, "shape of taps"),
        ({"inner": of(2, 5, 3, 8)}, "shape of inner"),
        ({"bias": of(8)}, "shape of bias"),
        ({"activation": "gelu"}, "the activation is 'gelu'"),
    ],
    "add_rms_norm": [
        ({"branch": of(2, 3, 8200)}, "the last axis of branch is 8200 long"),
        ({"stream": of(2, 4, 8)}, "shape of stream"),
        ({"scale": of(4)}, "shape of scale"),
        ({"bias": of(4)}, "shape of bias"),
    ],
    "selective_scan": [
        ({"x": of(1, 3, 48)}, "selective_scan: x has 48 channels; the kernel takes multiples of 32"),
        ({"B": of(1, 3, 3)}, "a channel has 3 states; the kernel takes powers of two"),
        ({"B": of(1, 3, 64)}, "the last axis of B is 64 long; the kernel takes up to 32"),
        ({"dt": of(1, 4, 32)}, r"shape of dt = \(1, 4, 32\): expected \(1, 3, 32\)"),
        ({"A": of(4, 32)}, "shape of A"),
        ({"h": of(1, 4, 32)}, "shape of h"),
        ({"keep": of(1, 2)}, "shape of keep"),
        ({"chunk": 6}, "chunk = 6: expected a multiple of 4 tokens"),
    ],
    "linear_recurrence": [
        ({"q": of(1, 3, 2, 257)}, "linear_recurrence: the last axis of q is 257 long"),
        ({"q": of(1, 1 << 21, 2, 4)}, "q has 2,097,152 tokens; the kernel takes up to 2,097,120"),
        ({"k": of(1, 3, 2, 5)}, r"shape of k = \(1, 3, 2, 5\): expected \(1, 3, 2, 4\)"),
        ({"v": of(1, 2, 2, 5)}, "shape of v"),
        ({"v": of(1, 3, 3, 5)}, "number of heads of v = 3: expected a multiple of 2, those of q and k"),
        ({"beta": of(1, 3)}, "shape of beta"),
        ({"log_decay": of(1, 3, 2, 5)}, "shape of log_decay"),
        ({"log_decay": of(1, 3, 2, 4)}, "beta = 'an array': expected None, as gates are per channel"),
        (
            {"low_rank": (of(1, 3, 2, 4),) * 2},
            "low_rank = 'two arrays': expected None, as gates are per head",
        ),
        ({"low_rank": (of(1, 3, 2, 4),)}, "low_rank = 1: expected 2 arrays"),
        ({"low_rank": (of(1, 3, 2, 4), of(1, 3, 4))}, "shape of b"),
        ({"inclusive": False}, "inclusive = False: expected True, as gates are per head"),
        ({"kv": of(1, 2, 5, 4)}, "shape of kv"),
        ({"starts": of(1, 3)}, "dtype of starts"),
        ({"precision": "high"}, "precision = 'high': expected None or 'highest'"),
        ({"variant": {"chunk": 24}}, "chunk = 24: expected a power of two from 16 on"),
        ({"variant": {"chunk": 64}}, "chunk = 64: expected at most 32 tokens"),
    ],
    "row_products": [
        ({"x": of(100)}, "row_products: x is 100 long; the kernel takes multiples of 64"),
        ({"matrices": [of(2, 8, 128)]}, r"shape of matrices\[0\] = "),
        ({"matrices": [of(128)]}, "row_products: matrix has 1 axes; the kernel takes 2"),
        ({"variant": {"width": 256}}, "width = 256: expected a divisor"),
        ({"biases": [of(8)]}, "biases = 1: expected none or 2"),
        ({"biases": [of(9), of(8)]}, r"shape of biases\[0\] = "),
    ],
    "gated_row_product": [
        ({"matrix": of(8, 128)}, "shape of matrix = "),
        ({"gate": "gelu"}, "gate = 'gelu': expected 'sigmoid' or 'silu'"),
    ],
    "conv_row_product": [
        ({"taps": of(1, 8)}, "conv_row_product: a convolution has 1 taps"),
        ({"history": of(2, 2, 8)}, "shape of history = "),
        ({"bias": of(2, 8)}, "shape of bias = "),
        ({"added": of(8)}, "shape of added = "),
    ],
    "softmax_loss": [
        ({"logits": of(2, 8, dtype="bfloat16")}, "logits has dtype bfloat16"),
        ({"logits": of(2, 1 << 30)}, "the kernel takes up to"),
        ({"vocab": 9}, "vocab = 9: expected 1 to 8"),
        ({"dtype": "float64"}, "dtype = 'float64'"),
        ({"targets": ints(3)}, "shape of targets"),
    ],
}
"""Changes of valid arguments, and a part of the message."""

FOLDERS = {"add_rms_norm": "rms_norm"}
FOLDERS |= dict.fromkeys(("gated_row_product", "conv_row_product"), "row_products")


def trace(op: str, **changes) -> None:
    """An op in the interpreter, with valid arguments but for some; block sizes are dictionaries."""
    given, variant = (
        VALID[op] | changes,
        importlib.import_module(f"pallas_kernels.{FOLDERS.get(op, op)}").Variant,
    )
    if "variant" in given:
        given["variant"] = variant(**given["variant"])
    if "variants" in given:
        given["variants"] = {
            "outputs": variant(**{"queries": 16, "keys": 16, "warps": 4} | given["variants"])
        }
    static = {name: x for name, x in given.items() if not all(map(is_array, jax.tree.leaves([x])))}
    arrays = {name: x for name, x in given.items() if name not in static}

    def run(arrays):
        matrices = arrays.pop("matrices", ())
        first = (arrays.pop("x"), *matrices) if matrices else ()
        return getattr(pallas_kernels, op)(*first, **arrays, **static)

    with pallas_kernels.interpreted():
        jax.eval_shape(run, arrays)


def is_array(x) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


@pytest.mark.parametrize("op", VALID)
def test_the_arguments_are_valid_but_for_the_changes(op):
    trace(op)


@pytest.mark.parametrize(
    ("op", "changes", "message"), [(op, *case) for op, cases in REFUSED.items() for case in cases]
)
def test_errors_name_the_argument(op, changes, message):
    with pytest.raises(ValueError, match=message):
        trace(op, **changes)


@pytest.mark.parametrize("op", ["taylor_attention", "taylor_step", "window_attention", "window_step"])
def test_supports(op):
    supports, arrays = getattr(pallas_kernels, f"supports_{op}"), [VALID[op][name] for name in "qkv"]
    assert supports(*arrays) is None
    assert "dtype float64" in supports(*(of(*x.shape, dtype="float64") for x in arrays))
    assert "0 axes" in supports(*[of()] * 3)
    with pallas_kernels.lowering_for("Tesla V100"):
        assert "capability 8.0" in supports(*arrays)
