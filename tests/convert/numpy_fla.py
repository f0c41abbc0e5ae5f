"""fla's models (flash-linear-attention) in NumPy and float64: names and shapes of tensors, and logits.

Written from the equations of each layer, token by token; it shares no code with the library. A config is
theirs, a plain dict. Arrays of heads are (batch, length, heads, channels).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.convert import numpy_gpt
from tests.convert.numpy_gpt import convolved, sigmoid

Config = Mapping[str, Any]
Tensors = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


def silu(x):
    return x * sigmoid(x)


ACTIVATIONS = {
    None: lambda x: x,
    "identity": lambda x: x,
    "silu": silu,
    "relu": lambda x: np.maximum(x, 0),
    "sqrelu": lambda x: np.maximum(x, 0) ** 2,
    "elu": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
}


def sizes(config: Config) -> dict[str, int]:
    """Heads, and channels of a key and of a value, of a model that is not Mamba-2."""
    kind, d, heads = config["model_type"], config["hidden_size"], config["num_heads"]
    if kind == "gated_deltanet":
        key, values = config["head_dim"], config.get("num_v_heads") or heads
        return {"q": heads, "k": heads, "v": values, "K": key, "V": int(key * config["expand_v"])}
    usual = {"gla": (0.5, 1), "retnet": (1, 2), "delta_net": (1, 1)}[kind]
    key, value = (
        int(d * config.get(name, x)) for name, x in zip(("expand_k", "expand_v"), usual, strict=True)
    )
    kv = config.get("num_kv_heads") or heads
    return {"q": heads, "k": kv, "v": kv, "K": key // heads, "V": value // heads}


def softmax_spec(config: Config, layer: int) -> Config | None:
    entry: Any = config.get("attn") or []
    found = [spec for spec in ([entry] if isinstance(entry, dict) else entry) if layer in spec["layers"]]
    return found[0] if found else None


def mixer_shapes(config: Config, layer: int) -> Shapes:
    """Of one layer, without its prefix."""
    kind, d = config["model_type"], config["hidden_size"]
    if kind == "mamba2":
        return mamba2_shapes(config)
    found: Shapes = {}
    if spec := softmax_spec(config, layer):
        width = d // spec["num_heads"]
        rows = {"q": d, "k": spec.get("num_kv_heads", spec["num_heads"]) * width}
        rows["v"] = rows["k"]
        found |= {f"{name}_proj.weight": (size, d) for name, size in rows.items()}
        if spec.get("qkv_bias"):
            found |= {f"{name}_proj.bias": (size,) for name, size in rows.items()}
        return found | {"o_proj.weight": (d, d)}
    n = sizes(config)
    rows = {"q": n["q"] * n["K"], "k": n["k"] * n["K"], "v": n["v"] * n["V"]}
    value_heads = n["v"] if "deltanet" in kind or kind == "delta_net" else n["q"]
    found |= {f"{name}_proj.weight": (size, d) for name, size in rows.items()}
    if kind != "retnet" and config.get("use_short_conv", kind != "gla"):
        found |= {f"{name}_conv1d.weight": (size, 1, config["conv_size"]) for name, size in rows.items()}
    gate = "use_gate" if "delta" in kind else "use_output_gate"
    is_gated = config.get(gate, kind != "delta_net")
    if is_gated:
        found["g_proj.weight"] = (value_heads * n["V"], d)
    if kind == "gla":
        found |= {
            "gk_proj.0.weight": (16, d),
            "gk_proj.1.weight": (rows["k"], 16),
            "gk_proj.1.bias": (rows["k"],),
        }
    if kind == "gated_deltanet":
        found |= {"a_proj.weight": (n["v"], d), "A_log": (n["v"],), "dt_bias": (n["v"],)}
    if "delta" in kind and config.get("use_beta", True):
        found["b_proj.weight"] = (n["v"], d)
    if "delta" in kind:
        found["o_norm.weight"] = (n["V"],)
    elif config.get("elementwise_affine", True):
        is_fused = is_gated and config.get("fuse_norm", True)
        found["g_norm_swish_gate.weight" if is_fused else "g_norm.weight"] = (n["V"],)
    return found | {"o_proj.weight": (d, value_heads * n["V"])}


def mamba2_shapes(config: Config) -> Shapes:
    d, width, states = config["hidden_size"], config["head_dim"], config["n_groups"] * config["state_size"]
    inner = int(config["expand"] * d)
    heads, convolved = inner // width, inner + 2 * states
    found: Shapes = {
        "in_proj.weight": (inner + convolved + heads, d),
        "conv1d.weight": (convolved, 1, config["conv_kernel"]),
        "dt_bias": (heads,),
        "A_log": (heads,),
        "D": (inner if config.get("D_has_hdim") else heads,),
        "out_proj.weight": (d, inner),
    }
    if config.get("rmsnorm", True):
        found["norm.weight"] = (inner,)
    if config.get("use_bias"):
        found |= {"in_proj.bias": (inner + convolved + heads,), "out_proj.bias": (d,)}
    if config.get("use_conv_bias", True):
        found["conv1d.bias"] = (convolved,)
    return found


def shapes(config: Config) -> Shapes:
    """Names and shapes of all tensors, as fla writes them."""
    d, vocab, is_mamba = config["hidden_size"], config["vocab_size"], config["model_type"] == "mamba2"
    body, mixer = ("backbone", "mixer") if is_mamba else ("model", "attn")
    found: Shapes = {f"{body}.embeddings.weight": (vocab, d)}
    for index in range(config["num_hidden_layers"]):
        layer = f"{body}.layers.{index}"
        found |= {f"{layer}.{mixer}.{name}": shape for name, shape in mixer_shapes(config, index).items()}
        found[f"{layer}.norm.weight" if is_mamba else f"{layer}.attn_norm.weight"] = (d,)
        if not is_mamba:
            found[f"{layer}.mlp_norm.weight"] = (d,)
            found |= {
                f"{layer}.mlp.{name}_proj.weight": (config["intermediate_size"], d) for name in ("gate", "up")
            }
            found[f"{layer}.mlp.down_proj.weight"] = (d, config["intermediate_size"])
    found[f"{body}.norm_f.weight" if is_mamba else f"{body}.norm.weight"] = (d,)
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = (vocab, d)
    return found


def drawn(config: Config, seed: int = 0) -> Tensors:
    """Random tensors: norms near one, nothing zero."""
    rng = np.random.default_rng(seed)
    found: Tensors = {}
    for name, shape in shapes(config).items():
        spread = 1 / math.sqrt(shape[-1]) if len(shape) > 1 and "embeddings" not in name else 0.5
        centre = 1.0 if "norm" in name else 0.0
        found[name] = (centre + spread * rng.normal(size=shape)).astype(np.float32)
    return found


def rms_norm(x, scale, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * scale


def rotated(x, base=10000.0):
    """The first half of the channels with the second."""
    return numpy_gpt.rotated(x, x.shape[-1], {"rotary_emb_base": base})


def recurrence(q, k, v, decay, beta=None):
    """S = decay S, then S += k v^T or beta k (v - S^T k)^T; y = S^T q. A decay is a head's or a channel's."""
    state, found = np.zeros((len(q), q.shape[2], q.shape[3], v.shape[3])), []
    for t in range(q.shape[1]):
        state = state * np.broadcast_to(decay[:, t], state.shape[:-1])[..., None]
        new = v[:, t]
        if beta is not None:
            new = beta[:, t, :, None] * (new - np.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * new[:, :, None]
        found.append(np.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return np.stack(found, 1)


class Layer:
    """The tensors of one layer, in float64."""

    def __init__(self, config: Config, weights: Mapping[str, np.ndarray], prefix: str, index: int):
        self.config, self.index = config, index
        self.weights = {
            name.removeprefix(prefix): np.asarray(tensor, np.float64)
            for name, tensor in weights.items()
            if name.startswith(prefix)
        }

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def split(self, x, heads):
        return x.reshape(*x.shape[:2], heads, -1)

    def convolution(self, name, x):
        """Of a projection, where the layer has one, without the activation after it."""
        key = f"{name}_conv1d.weight"
        return convolved(x, self.weights[key]) if key in self.weights else x

    def heads_out(self, y, x):
        """The norm of each head, its gate, and the map back."""
        names = [f"{name}.weight" for name in ("g_norm", "g_norm_swish_gate", "o_norm")]
        scale = next((self.weights[name] for name in names if name in self.weights), 1.0)
        y = rms_norm(y, scale, self.config["norm_eps"]).reshape(*x.shape[:2], -1)
        if "g_proj.weight" in self.weights:
            y = y * silu(self.linear("g_proj", x))
        return self.linear("o_proj", y)

    def __call__(self, x):
        if spec := softmax_spec(self.config, self.index):
            return self.attention(spec, x)
        return getattr(self, self.config["model_type"])(x)

    def attention(self, spec, x):
        packed = np.concatenate([self.linear(f"{name}_proj", x) for name in "qkv"], -1)
        gpt = {"n_embd": x.shape[-1], "n_head": spec["num_heads"], "n_head_kv": spec.get("num_kv_heads")}
        gpt |= {"rotary_emb_fraction": 1.0, "rotary_emb_base": spec.get("rope_theta", 10000.0)}
        window = [spec.get("window_size", 0) - 1, 0]  # theirs includes the query
        return self.linear("o_proj", numpy_gpt.attention(gpt | {"window_size": window}, packed, 0))

    def gla(self, x):
        n = sizes(self.config)
        parts = {name: self.convolution(name, self.linear(f"{name}_proj", x)) for name in "qkv"}
        if self.config.get("use_short_conv"):
            parts = {name: silu(part) for name, part in parts.items()}
        q, k, v = (self.split(part, n[name]) for name, part in parts.items())
        q, k = (ACTIVATIONS[self.config.get("feature_map")](a) for a in (q, k))
        gate = self.split(self.linear("gk_proj.1", self.linear("gk_proj.0", x)), n["k"])
        log_decay = -np.log1p(np.exp(-gate)) / 16
        if self.config.get("clamp_min") is not None:
            log_decay = np.maximum(log_decay, self.config["clamp_min"])
        k, v, log_decay = (np.repeat(a, n["q"] // n["k"], 2) for a in (k, v, log_decay))
        return self.heads_out(recurrence(q / math.sqrt(n["K"]), k, v, np.exp(log_decay)), x)

    def retnet(self, x):
        n = sizes(self.config)
        q, k, v = (self.split(self.linear(f"{name}_proj", x), n[name]) for name in "qkv")
        q, k = (rotated(ACTIVATIONS[self.config.get("feature_map")](a)) for a in (q, k))
        k, v = (np.repeat(a, n["q"] // n["k"], 2) for a in (k, v))
        decay = np.broadcast_to((1 - 2.0 ** (-5 - np.arange(n["q"])))[:, None], (*x.shape[:2], n["q"], 1))
        return self.heads_out(recurrence(q / math.sqrt(n["K"]), k, v, decay), x)

    def delta_net(self, x):
        n = sizes(self.config)
        q, k, v = (self.split(self.convolution(c, self.linear(f"{c}_proj", x)), n[c]) for c in "qkv")
        q, k = (ACTIVATIONS[self.config.get("qk_activation", "silu")](a) for a in (q, k))
        beta = sigmoid(self.linear("b_proj", x)) if "b_proj.weight" in self.weights else np.ones(q.shape[:3])
        return self.delta_rule(q, k, silu(v), beta, np.ones(q.shape[:3]), x)

    def gated_deltanet(self, x):
        n = sizes(self.config)
        q, k, v = (silu(self.split(self.convolution(c, self.linear(f"{c}_proj", x)), n[c])) for c in "qkv")
        q, k = (np.repeat(a, n["v"] // n["q"], 2) for a in (q, k))
        step = np.log1p(np.exp(self.linear("a_proj", x) + self.weights["dt_bias"]))
        decay = np.exp(-np.exp(self.weights["A_log"]) * step)
        return self.delta_rule(q, k, v, sigmoid(self.linear("b_proj", x)), decay, x)

    def delta_rule(self, q, k, v, beta, decay, x):
        if self.config.get("qk_norm") == "sum":
            q, k = (a / a.sum(-1, keepdims=True) for a in (q, k))
        else:
            q, k = (a / np.sqrt((a**2).sum(-1, keepdims=True) + 1e-6) for a in (q, k))
        beta = beta * 2 if self.config.get("allow_neg_eigval") else beta
        return self.heads_out(recurrence(q / math.sqrt(q.shape[-1]), k, v, decay[..., None], beta), x)

    def mamba2(self, x):
        config, weights = self.config, self.weights
        groups, states, width = config["n_groups"], config["state_size"], config["head_dim"]
        inner = int(config["expand"] * config["hidden_size"])
        is_fla = "time_step_limit" not in config
        heads = inner // width
        ends = np.cumsum([inner, inner + 2 * groups * states])
        z, u, dt = np.split(self.linear("in_proj", x), ends, -1)
        u = silu(convolved(u, weights["conv1d.weight"]) + weights.get("conv1d.bias", 0.0))
        u, B, C = np.split(u, np.cumsum([inner, groups * states]), -1)
        B, C = (np.repeat(self.split(a, groups), heads // groups, 2) for a in (B, C))
        u, D = self.split(u, heads), weights["D"].reshape(heads, -1)
        low, high = config["dt_limit" if is_fla else "time_step_limit"] or (0.0, math.inf)
        high = high if isinstance(high, int | float) else math.inf
        dt = np.clip(np.log1p(np.exp(dt + weights["dt_bias"])), low, high)
        decay = np.exp(-np.exp(weights["A_log"]) * dt)
        y = (recurrence(C, B, u * dt[..., None], decay[..., None]) + D * u).reshape(*x.shape[:2], inner)
        if not config.get("rmsnorm", True):
            return self.linear("out_proj", y * silu(z))
        is_before = is_fla and config.get("norm_before_gate", False)
        y = y if is_before else y * silu(z)
        parts = self.split(y, 1 if not is_fla and "fuse_norm" in config else groups)
        y = rms_norm(parts, 1.0, epsilon(config)).reshape(y.shape) * weights["norm.weight"]
        return self.linear("out_proj", y * silu(z) if is_before else y)


def epsilon(config: Config) -> float:
    """Of the norms, under the name of fla or of transformers."""
    return config["norm_eps"] if "norm_eps" in config else config["layer_norm_epsilon"]


def logits(config: Config, tensors: Mapping[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """The model's logits, in float64."""
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    is_mamba, eps = config["model_type"] == "mamba2", epsilon(config)
    body, mixer = ("backbone", "mixer") if is_mamba else ("model", "attn")
    embedding = weights[f"{body}.embeddings.weight"]
    h = embedding[tokens]
    for index in range(config["num_hidden_layers"]):
        layer = f"{body}.layers.{index}"
        norm = weights[f"{layer}.norm.weight" if is_mamba else f"{layer}.attn_norm.weight"]
        h = h + Layer(config, weights, f"{layer}.{mixer}.", index)(rms_norm(h, norm, eps))
        if not is_mamba:
            x = rms_norm(h, weights[f"{layer}.mlp_norm.weight"], eps)
            gate, up, down = (weights[f"{layer}.mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
            h = h + (silu(x @ gate) * (x @ up)) @ down
    h = rms_norm(h, weights[f"{body}.norm_f.weight" if is_mamba else f"{body}.norm.weight"], eps)
    return h @ weights.get("lm_head.weight", embedding).T
