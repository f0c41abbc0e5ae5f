"""The authors' GPT (flash-attention's, and Based's) in NumPy and float64: names of tensors, and logits.

Written from the formulas; it shares no code with the library. A config is theirs, a plain dict.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Config = Mapping[str, Any]
Tensors = dict[str, np.ndarray]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _gelu(x):
    return x * (1 + _erf(x / math.sqrt(2))) / 2


def _gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def linear(weights: Mapping[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T.astype(np.float64) + weights.get(f"{name}.bias", 0.0)


def norm(
    weights: Mapping[str, np.ndarray], name: str, x: np.ndarray, eps: float = 1e-5, *, rms: bool = False
):
    """Normalize each token's channels: LayerNorm, or RMSNorm."""
    x = x if rms else x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0.0)


GATED: dict[str, Callable] = {"swiglu": lambda x: x * sigmoid(x), "geglu": _gelu, "glu": sigmoid}
PLAIN: dict[str, Callable] = {
    "gelu": _gelu,
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_approx", "gelu_pytorch_tanh"), _gelu_tanh),
    "relu": lambda x: np.maximum(x, 0),
    "sqrelu": lambda x: np.maximum(x, 0) ** 2,
}


ENTRIES = {"n_head": "num_heads", "n_head_kv": "num_heads_kv"}
"""Entries of a config -> arguments of an MHA; the others have one name."""


def entry(config: Config, index: int) -> tuple[str, Config]:
    """A layer's class and its arguments; those of attention under the names of a config."""
    slot = next(
        (f"alt_mixer{last}" for last in ("_2", "") if index in (config.get(f"alt_mixer{last}_layers") or ())),
        "mixer",
    )
    given = dict(config.get(slot) or {})
    name = given.pop("_target_", "").rpartition(".")[2]
    if name == "MHA":
        width = config["n_embd"] // given["num_heads"]
        own = {key: given[theirs] for key, theirs in ENTRIES.items() if theirs in given}
        rotary = {"rotary_emb_fraction": given.get("rotary_emb_dim", 0) / width}
        return name, {"n_embd": config["n_embd"], **given, **own, **rotary}
    if name == "SlidingAttention":
        return name, {**config, "window_size": [given.get("window_size", 128) // 2, 0]}
    return (name, given) if name else (name, config)


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a model with this config has."""
    d, vocab = config["n_embd"], config["vocab_size"]
    embed = config.get("word_embed_proj_dim") or d
    found: dict[str, tuple[int, ...]] = {"transformer.embeddings.word_embeddings.weight": (vocab, embed)}
    if embed != d:
        found["transformer.embeddings.project_in.weight"] = (d, embed)
        found["project_out.weight"] = (embed, d)
    if config.get("max_position_embeddings"):
        found["transformer.embeddings.position_embeddings.weight"] = (config["max_position_embeddings"], d)

    def linear(name, rows, columns, bias):
        found[f"{name}.weight"] = (rows, columns)
        if bias:
            found[f"{name}.bias"] = (rows,)

    def norm(name):
        found[f"{name}.weight"] = (d,)
        if not config.get("rms_norm", False):
            found[f"{name}.bias"] = (d,)

    for index in range(config["n_layer"]):
        layer = f"transformer.layers.{index}"
        norm(f"{layer}.norm1")
        if not (config.get("parallel_block") and config.get("parallel_block_tied_norm")):
            norm(f"{layer}.norm2")
        name, own = entry(config, index)
        if name == "BaseConv":
            inner = own.get("expand_proj", 2) * d
            linear(f"{layer}.mixer.in_proj", inner, d, True)
            linear(f"{layer}.mixer.out_proj", d, inner // 2, True)
            found[f"{layer}.mixer.conv.conv.weight"] = (inner // 2, 1, own.get("kernel_size", 3))
        elif name == "LinearAttention":
            count, value = own["num_heads"], own.get("head_dim", d // own["num_heads"])
            for part, size in (("q", own["feature_dim"]), ("k", own["feature_dim"]), ("v", value)):
                linear(f"{layer}.mixer.proj_{part}", count * size, d, False)
            linear(f"{layer}.mixer.out_proj", d, count * value, False)
        else:
            rows = d // own["n_head"] * (own["n_head"] + 2 * (own.get("n_head_kv") or own["n_head"]))
            linear(f"{layer}.mixer.Wqkv", rows, d, own.get("qkv_proj_bias", True))
            linear(f"{layer}.mixer.out_proj", d, d, own.get("out_proj_bias", True))
        if config["activation_function"] == "none":  # no MLP
            continue
        inner, first = _inner(config), config.get("mlp_fc1_bias", True)
        is_gated, is_alt = config["activation_function"] in GATED, config.get("mlp_type") == "alt"
        linear(f"{layer}.mlp.fc1", inner * (2 if is_gated and not is_alt else 1), d, first)
        if is_gated and is_alt:
            linear(f"{layer}.mlp.fc3", inner, d, first)
        linear(f"{layer}.mlp.fc2", d, inner, config.get("mlp_fc2_bias", True))
    if config.get("prenorm", True):
        norm("transformer.ln_f")
    if not config.get("tie_word_embeddings", True):
        found["lm_head.weight"] = (vocab, embed)
    return found


def _inner(config: Config) -> int:
    d, inner = config["n_embd"], config.get("n_inner")
    if "width" in config:  # as it is
        return config["width"]
    if config["activation_function"] in PLAIN:
        return 4 * d if inner is None else inner
    if config.get("mlp_type") == "alt":
        wanted = int(2 * d * config.get("ff_mult", 2) / 3)
    else:
        wanted = int(8 * d / 3) if inner is None else inner
    return -(-wanted // 256) * 256


def drawn(config: Config, seed: int = 0) -> Tensors:
    """Random tensors: norms near one, nothing zero; attention matrices large enough that scales matter."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes(config).items():
        is_scale = "norm" in name or "ln_f" in name
        spread = 1 / math.sqrt(shape[-1]) if len(shape) > 1 and "embeddings" not in name else 0.5
        spread *= 2 if "Wqkv" in name or "proj_q" in name or "proj_k" in name else 1
        centre = 1.0 if is_scale and name.endswith("weight") else 0.0
        found[name] = (centre + spread * rng.normal(size=shape)).astype(np.float32)
    return found


def logits(config: Config, tensors: Mapping[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """The model's logits, in float64."""
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    project = functools.partial(linear, weights)
    normed = functools.partial(
        norm, weights, eps=config.get("layer_norm_epsilon", 1e-5), rms=config.get("rms_norm", False)
    )

    def mlp(name, x):
        activation = config["activation_function"]
        if activation == "none":
            return x
        if activation in PLAIN:
            return project(f"{name}.fc2", PLAIN[activation](project(f"{name}.fc1", x)))
        if config.get("mlp_type") == "alt":
            inner = GATED[activation](project(f"{name}.fc1", x)) * project(f"{name}.fc3", x)
        else:
            value, gate = np.split(project(f"{name}.fc1", x), 2, axis=-1)
            inner = value * GATED[activation](gate)
        return project(f"{name}.fc2", inner)

    word = weights["transformer.embeddings.word_embeddings.weight"]
    h = word[tokens]
    if "project_out.weight" in weights:
        h = project("transformer.embeddings.project_in", h)
    if config.get("max_position_embeddings"):
        h = h + weights["transformer.embeddings.position_embeddings.weight"][: tokens.shape[1]]
    for index in range(config["n_layer"]):
        layer = f"transformer.layers.{index}"

        def mixer(x, layer=layer, index=index):
            name, own = entry(config, index)
            if name == "BaseConv":
                u, gate = np.split(project(f"{layer}.mixer.in_proj", x), 2, axis=-1)
                u = convolved(u, weights[f"{layer}.mixer.conv.conv.weight"])
                return project(f"{layer}.mixer.out_proj", u * sigmoid(u) * gate)
            if name == "LinearAttention":
                q, k, v = (project(f"{layer}.mixer.proj_{part}", x) for part in "qkv")
                return project(f"{layer}.mixer.out_proj", taylor_attention(own, q, k, v))
            packed = project(f"{layer}.mixer.Wqkv", x)
            return project(f"{layer}.mixer.out_proj", attention(own, packed, index))

        if not config.get("prenorm", True):
            h = normed(f"{layer}.norm1", mixer(h) + h)
            h = normed(f"{layer}.norm2", mlp(f"{layer}.mlp", h) + h)
        elif config.get("parallel_block"):
            x = normed(f"{layer}.norm1", h)
            tied = config.get("parallel_block_tied_norm")
            h = h + mixer(x) + mlp(f"{layer}.mlp", x if tied else normed(f"{layer}.norm2", h))
        else:
            h = h + mixer(normed(f"{layer}.norm1", h))
            h = h + mlp(f"{layer}.mlp", normed(f"{layer}.norm2", h))
    if config.get("prenorm", True):
        h = normed("transformer.ln_f", h)
    if "project_out.weight" in weights:
        h = project("project_out", h)
    return h @ weights.get("lm_head.weight", word).T


def attention(config: Config, packed: np.ndarray, index: int) -> np.ndarray:
    """Causal attention of packed queries, keys and values, before the output projection."""
    batch, length, _ = packed.shape
    heads, d = config["n_head"], config["n_embd"]
    width = d // heads
    kv_heads = config.get("n_head_kv") or heads
    nominal = config.get("head_dim", width)
    scale = nominal**-0.5 if config.get("scale_attn_weights", True) else 1.0
    if config.get("scale_attn_by_inverse_layer_idx"):
        scale /= index + 1
    scale = config.get("softmax_scale", scale)
    sizes = np.cumsum([heads * width, kv_heads * width])
    q, k, v = (x.reshape(batch, length, -1, width) for x in np.split(packed, sizes, axis=-1))
    turned = int(config.get("rotary_emb_fraction", 0.0) * nominal)
    if turned:
        q, k = (rotated(x, turned, config) for x in (q, k))
    k, v = (np.repeat(x, heads // kv_heads, axis=2) for x in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) * scale
    distance = np.arange(length)[:, None] - np.arange(length)
    left = (config.get("window_size") or (-1, -1))[0]
    visible = (distance >= 0) & ((distance <= left) | (left < 0))
    scores = np.where(visible, scores, -np.inf)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    return np.einsum("bhij,bjhd->bihd", share, v).reshape(batch, length, d)


def convolved(u: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Causal convolution of each channel; the last tap is the current token's."""
    count = taps.shape[-1]
    padded = np.pad(u, ((0, 0), (count - 1, 0), (0, 0)))
    parts = [taps[:, 0, lag] * padded[:, lag : lag + u.shape[1]] for lag in range(count)]
    return np.sum(parts, axis=0)


def taylor_attention(given: Config, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Linear attention with Taylor's map, of the scale of `input_dim`; fla's kernels have their own."""
    q, k, v = (x.reshape(*x.shape[:2], given["num_heads"], -1) for x in (q, k, v))
    is_fla = given.get("parallel_implementation", "").startswith("fla")
    width = q.shape[-1] if is_fla else given["feature_map"]["input_dim"]
    scores = np.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(width)
    weights = np.tril(1 + scores + scores**2 / 2)
    weights /= weights.sum(-1, keepdims=True) + (1e-6 if is_fla else given.get("eps", 1e-12))
    return np.einsum("bhij,bjhd->bihd", weights, v).reshape(*v.shape[:2], -1)


def rotated(x: np.ndarray, turned: int, config: Config) -> np.ndarray:
    """Channels (i, i + r) of the first `turned`, or neighbours if interleaved, turned by position."""
    base = config.get("rotary_emb_base", 10000.0)
    angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(0, turned, 2) / turned)
    cos, sin = (f(angles)[:, None, :] for f in (np.cos, np.sin))
    is_interleaved = config.get("rotary_emb_interleaved", False)
    first = slice(0, turned, 2) if is_interleaved else slice(0, turned // 2)
    second = slice(1, turned, 2) if is_interleaved else slice(turned // 2, turned)
    result = x.copy()
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., first] * sin + x[..., second] * cos
    return result
