"""cuDNN's attention: which calls it gets, with which arguments, and what those mean.

There is no cuDNN here. JAX's own attention takes the same arguments, so what they mean is checked with it;
what they become in the call of cuDNN is read from the program, which can be lowered anywhere.
"""

import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from based_jax import mixers, ops
from based_jax.ops import cudnn_attention
from based_jax.ops.core import implementations, platforms
from pallas_kernels import offline
from tests.arrays import array, blank
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT32_GRADIENT, assert_close


@pytest.fixture
def stand_in(monkeypatch):
    """JAX's own attention instead of cuDNN's, which then takes float32, too."""
    monkeypatch.setattr(cudnn_attention, "IMPLEMENTATION", "xla")
    monkeypatch.setattr(implementations, "_cannot_run", lambda *arguments: None)


@pytest.fixture
def jax_cudnn():
    """Where JAX looks for cuDNN; private."""
    return pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")


@pytest.fixture
def found(monkeypatch, jax_cudnn):
    """A GPU with cuDNN, as far as the choice of an implementation and JAX's tracing can see."""
    monkeypatch.setattr(platforms, "platform_of", lambda arrays: "gpu")
    monkeypatch.setattr(jax_cudnn, "check_cudnn_version", lambda: 92000)
    cudnn_attention._refusal.cache_clear()
    with offline._abstract_gpu(offline.H200):  # for which jax >= 0.11 lowers our kernels
        yield
    cudnn_attention._refusal.cache_clear()


class Case(NamedTuple):
    """Sizes and options of one call."""

    heads: int = 1
    kv_heads: int = 1
    causal: bool = True
    left: int | None = None
    padded: bool = False
    scale: float | None = None
    width: int = 8


BATCH, LENGTH = 3, 9


def draw(case: Case, length: int = LENGTH, seed: int = 0) -> tuple[np.ndarray, ...]:
    """q, k, v, and weights of the outputs, 0 at padding."""
    rng = np.random.default_rng(seed)
    sizes = (case.heads, case.kv_heads, case.kv_heads, case.heads)
    return tuple(rng.normal(size=(BATCH, length, heads, case.width)).astype(np.float32) for heads in sizes)


@pytest.mark.parametrize(
    "case",
    [
        Case(heads=4, kv_heads=2, width=10),
        pytest.param(Case(left=0), marks=pytest.mark.release),
        Case(heads=2, left=3, padded=True, scale=0.3),
        pytest.param(Case(left=LENGTH - 2), marks=pytest.mark.slow),
        pytest.param(Case(left=LENGTH - 1), marks=pytest.mark.release),
        Case(heads=2, causal=False, padded=True),
    ],
    ids=str,
)
def test_the_arguments_mean_what_ours_mean(case, stand_in, monkeypatch):
    """Values and gradients: windows to the key, which head has which keys, the scale, padding of rows and of
    heads."""
    attend, widths = jax.nn.dot_product_attention, []

    def recorded(q, k, v, **options):
        widths.extend(x.shape[-1] for x in (q, k, v))
        return attend(q, k, v, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", recorded)
    q, k, v, weights = draw(case)
    real = np.arange(LENGTH) < np.array([[LENGTH], [5], [0]] if case.padded else [[LENGTH]] * BATCH)
    mask = array(real) if case.padded else None
    weights = weights * real[..., None, None]

    def loss(arrays, name):
        y = ops.softmax_attention(
            *arrays, causal=case.causal, left=case.left, scale=case.scale, mask=mask, implementation=name
        )
        return jnp.sum(weights * jnp.where(real[..., None, None], y, 0)), y

    run = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (_, y), gradients = run(tuple(map(array, (q, k, v))), "cudnn")
    assert set(widths) == {-(-case.width // 8) * 8}
    with jax.enable_x64(True):
        (_, wanted), expected = run(tuple(x.astype(np.float64) for x in (q, k, v)), "reference")
    assert np.isfinite(y).all(), "outputs at padding are meaningless but finite"
    assert_close(np.asarray(y)[real], np.asarray(wanted)[real], FLOAT32)
    assert_close(gradients, expected, FLOAT32_GRADIENT, magnitude=0.1)


@pytest.mark.release
@pytest.mark.parametrize(("left", "width"), [pytest.param(3, 8, marks=pytest.mark.slow), (None, 6)])
def test_a_cache_from_the_first_prompt_to_single_tokens(left, width, stand_in):
    """Prompts of different lengths into an empty cache, a further chunk, then tokens, one of them of another
    text than those before it: outputs and caches are those of the reference. The cache has 8 channels."""
    case = Case(heads=2, kv_heads=1, left=left, width=width)
    chunks = [draw(case, length, seed)[:3] for seed, length in enumerate((5, 5, 1, 1, 1))]
    counts = [np.array([[5], [2], [0]]), np.array([[3], [3], [2]])]
    context = [{"mask": np.arange(len(p[0][0])) < n} for p, n in zip(chunks, counts, strict=False)]
    context += [{}, {"segment_ids": np.full((BATCH, 1), 7, np.int32)}, {}]

    @functools.partial(jax.jit, static_argnames="name")
    def step(arrays, cache, context, name):
        return ops.softmax_attention(
            *arrays, left=left, initial_state=cache, return_state=True, implementation=name, **context
        )

    outputs = {}
    for name in ("cudnn", "reference"):
        cache = blank(ops.init_kv_cache, BATCH, 12 if left is None else left + 1, 1, 8, 8)
        outputs[name] = []
        for arrays, given in zip(chunks, context, strict=True):
            # A text's first token has a segment, which cuDNN does not take; those after it have none.
            taken = "reference" if "segment_ids" in given else name
            y, cache = step(arrays, cache, given, taken)
            real = given.get("mask", np.ones((BATCH, 1), bool))
            outputs[name].append(np.asarray(y) * real[..., None, None])
        outputs[name].append(cache)
    assert_close(outputs["cudnn"], outputs["reference"], FLOAT32)


def test_the_cache_of_a_mixer_need_not_be_padded_for_every_token():
    for name, channels in ((None, 70), ("cudnn", 72)):
        mixer = mixers.make("attention", d_model=140, num_heads=2, implementation=name)
        assert jax.eval_shape(lambda mixer=mixer: mixer.init_state(1, 4)).k.shape == (1, 4, 2, channels)


def calls(function, *arrays) -> list[tuple[str, str, int]]:
    """The calls of cuDNN in a program: target, mask, length of the sliding window (0 is none)."""
    text = jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text().replace("\\22", '"')
    pattern = r'custom_call @__cudnn\$(\w+)\(.*?"mask_type": "(\w+)".*?"sliding_window_length": (\d+)'
    return [(target, mask, int(window)) for target, mask, window in re.findall(pattern, text)]


def halves(length: int, dtype=jnp.bfloat16, width: int = 64, values: int | None = None):
    """Shapes of q, k, v with 4 and 2 heads."""
    sizes = ((4, width), (2, width), (2, values or width))
    return [jax.ShapeDtypeStruct((2, length, *size), dtype) for size in sizes]


def test_the_calls_of_cudnn(found):
    """A window sees `left` past keys and its own, with is_causal: without it, it would see all later keys."""
    attend = functools.partial(ops.softmax_attention, implementation="cudnn")
    q, k, v = halves(64)
    mask = jax.ShapeDtypeStruct((2, 64), bool)
    assert calls(attend, q, k, v) == [("fmhaSoftmax", "CAUSAL", 0)]
    assert calls(functools.partial(attend, left=7), q, k, v) == [("fmhaSoftmax", "CAUSAL", 8)]
    both = functools.partial(attend, causal=False)
    assert calls(both, q, k, v) == [("fmhaSoftmax", "NO_MASK", 0)]
    assert calls(lambda q, k, v, mask: both(q, k, v, mask=mask), q, k, v, mask) == [
        ("fmhaSoftmax", "PADDING", 0)
    ]
    # Causal queries never see padding on the right.
    assert calls(lambda q, k, v, mask: attend(q, k, v, mask=mask), q, k, v, mask) == [
        ("fmhaSoftmax", "CAUSAL", 0)
    ]

    def gradients(q, k, v):
        return jax.grad(lambda q: attend(q, k, v, left=7).astype(jnp.float32).sum())(q)

    assert calls(gradients, q, k, v) == [("fmhaSoftmax", "CAUSAL", 8), ("fmhaSoftmaxBackward", "CAUSAL", 8)]
    cache = jax.eval_shape(lambda: ops.init_kv_cache(2, 96, 2, 64, 64, jnp.bfloat16))
    into = functools.partial(attend, return_state=True)
    prompt = calls(lambda q, k, v, cache: into(q, k, v, initial_state=cache), q, k, v, cache)
    assert prompt == [("fmhaSoftmax", "CAUSAL", 0)]
    token = calls(lambda q, k, v, cache: into(q, k, v, initial_state=cache), *halves(1), cache)
    assert token == [("fmhaScaleBiasSoftmax", "NO_MASK", 0)]
    assert calls(gradients, *halves(64, width=60)) == calls(gradients, q, k, v)


def test_the_default_gives_cudnn_what_it_takes(found):
    def takes(*arrays, **options):
        return bool(calls(functools.partial(ops.softmax_attention, **options), *arrays))

    enough = cudnn_attention.MIN_LENGTH
    assert takes(*halves(enough))
    assert takes(*halves(enough, width=60))
    assert takes(*halves(2 * enough, jnp.float16), left=pallas_kernels.MAX_WINDOW_LEFT + 1)
    assert not takes(*halves(enough, jnp.float16), left=8)  # a window for our own kernels
    assert not takes(*halves(enough - 1))
    assert implementations.choose("softmax_attention", *halves(enough)) == "cudnn"
    assert implementations.choose("softmax_attention", *halves(enough - 1)) == "xla"
    assert not takes(*halves(enough), return_log_sum=True)
    assert not takes(*halves(enough), allowed=lambda i, j: i == j)
    assert not takes(*halves(enough), segment_ids=jnp.zeros((2, enough), jnp.int32))
    assert not takes(*halves(enough), initial_state=ops.init_kv_cache(2, enough, 2, 64, 64, jnp.float32))


def test_what_cudnn_does_not_take(found):
    for arrays, message in [
        (halves(256, jnp.float32), "takes one dtype of bfloat16 or float16, and q, k, v are float32"),
        (halves(256, width=136), "up to 128, and these have 136"),
        (halves(256, values=32), "takes keys and values of one width .* and these have 64 and 32 channels"),
    ]:
        assert implementations.choose("softmax_attention", *arrays) == "xla"
        with pytest.raises(ValueError, match=rf"^implementation = 'cudnn': {'.*'}{message}"):
            implementations.choose("softmax_attention", *arrays, implementation="cudnn")


def test_where_jax_finds_no_cudnn(found, jax_cudnn, monkeypatch):
    def missing():
        raise RuntimeError("cuDNN is not detected.")

    monkeypatch.setattr(jax_cudnn, "check_cudnn_version", missing)
    arrays = halves(256)
    assert implementations.choose("softmax_attention", *arrays) == "xla"
    with pytest.raises(ValueError, match="'cudnn': is refused by jax: cuDNN is not detected"):
        implementations.choose("softmax_attention", *arrays, implementation="cudnn")


def test_without_a_gpu_a_name_is_one_error():
    with pytest.raises(ValueError, match=r"'cudnn': runs on GPUs, .* 'cpu'; expected None, .* 'reference'"):
        ops.softmax_attention(*(jnp.zeros(x.shape, x.dtype) for x in halves(8)), implementation="cudnn")


def bfloat16_calls(length, lefts):
    """Outputs, gradients, a prompt and a token of what a Transformer++ computes, against float32."""
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(2, length, heads, 64) for heads in (4, 2, 2, 4)]
    arrays = [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)]

    @functools.partial(jax.jit, static_argnames=("name", "dtype", "left"))
    def run(arrays, name, dtype, left):
        q, k, v, g = (x.astype(dtype) for x in arrays)
        attend = functools.partial(ops.softmax_attention, implementation=name)
        y, pull_back = jax.vjp(lambda *qkv: attend(*qkv, left=left), q, k, v)
        both = attend(q, k, v, causal=False)
        slots = length if left is None else left + 1
        cache = ops.init_kv_cache(2, slots, 2, 64, 64, dtype)
        into = functools.partial(attend, left=left, return_state=True)
        start, cache = into(*(x[:, :-1] for x in (q, k, v)), initial_state=cache)
        token, _ = into(*(x[:, -1:] for x in (q, k, v)), initial_state=cache)
        return y, pull_back(g), both, start, token

    for left in lefts:
        ours = run(arrays, "cudnn", "bfloat16", left)
        exact = run(arrays, "reference", "float32", left)
        assert {x.dtype.name for x in jax.tree.leaves(ours)} == {"bfloat16"}
        assert_close(ours, exact, BFLOAT16, magnitude=1.0)


@pytest.mark.gpu
def test_cudnn_itself():
    bfloat16_calls(257, (None, 63))
