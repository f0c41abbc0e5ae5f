"""Torch names and layouts of fla's layers (flash-linear-attention, fla/layers), which Zoology copied.

Those of attention and of the MLP are Hugging Face's.

Tables include optional parts (gates, convolutions); `layouts.select` keeps those that a module has.
"""

from based_jax.convert.layouts import Rules, dense, linear, taps, vector

HEADS: Rules = (
    *(rule for name in "qkv" for rule in dense(f"{name}_proj", name)),  # only attention has biases
    linear("g_proj.weight", "gate/kernel"),
    *dense("o_proj", "out", inputs=2),
    *(vector(f"{name}_norm.weight", f"{name}_norm") for name in "qk"),
)

CONVOLVED: Rules = (*HEADS, *(taps(f"{name}_conv1d.weight", f"{name}_conv") for name in "qkv"))

GLA: Rules = (
    *CONVOLVED,
    linear("gk_proj.0.weight", "decay_in/kernel"),
    linear("gk_proj.1.weight", "decay_out/kernel"),
    vector("gk_proj.1.bias", "decay_out/bias"),
)

DELTA_NET: Rules = (*CONVOLVED, linear("b_proj.weight", "beta/kernel"), vector("o_norm.weight", "norm_scale"))

STEPS: Rules = (linear("a_proj.weight", "step/kernel"), vector("dt_bias", "dt_bias"))

MAMBA2: Rules = (
    taps("conv1d.weight", "conv_kernel"),
    vector("conv1d.bias", "conv_bias"),
    vector("dt_bias", "dt_bias"),
    vector("A_log", "A_log"),
    vector("D", "D"),
    vector("norm.weight", "norm_scale"),
    *dense("out_proj", "out"),
)

_HEAD_NORM: Rules = (vector("g_norm.weight", "norm_scale"),)
_MAMBA2_INPUTS = ("in_proj", "maps", "step")  # rows [z, x | B, C | dt]

MIXERS: dict[str, Rules] = {
    "attention": HEADS,
    "delta_net": DELTA_NET,
    "gated_delta_net": (*DELTA_NET, *STEPS, vector("A_log", "A_log")),
    "gla": (*GLA, *_HEAD_NORM),
    "mamba2": (
        *MAMBA2,
        linear("in_proj.weight", [f"{part}/kernel" for part in _MAMBA2_INPUTS]),
        vector("in_proj.bias", [f"{part}/bias" for part in _MAMBA2_INPUTS]),
    ),
    "retnet": (*HEADS, *_HEAD_NORM),
    "sliding_window": HEADS,
}
"""Rules for fla's models, by our registered name; for the norm's name, see `fla_names`."""

MLP: Rules = (
    linear(("up_proj.weight", "gate_proj.weight"), "in_proj/kernel"),  # silu(gate x) * up x: up is the value
    vector(("up_proj.bias", "gate_proj.bias"), "in_proj/bias"),
    *dense("down_proj", "out"),
)
