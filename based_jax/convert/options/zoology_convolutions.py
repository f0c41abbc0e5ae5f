"""Arguments of Zoology's convolutions, of Hyena's filters and of H3's state spaces."""

from based_jax.convert.options.option import Option
from based_jax.convert.options.rows import (
    D_MODEL,
    FAILS,
    INITIAL,
    KEYWORDS,
    LAYER,
    SWALLOWED,
    TENSORS,
    dropout,
    ignored,
    refused,
    renamed,
    same,
)

_L_MAX = same("l_max")
_RATE = "a learning rate, that Zoology's trainer does not read"
_DIAG = "of mode 'diag'; refused with the others"
_EMA = "of mode 'ema'; refused with the others"

_FILTER = (
    same("emb_dim", "3"),
    ignored("lr", "1e-3", _RATE),
    renamed("lr_pos_emb", "1e-5", "learned_positions", "0: False"),
    renamed("w", "1", "sine_frequency", "of the initial frequencies"),
    ignored("wd", "0", "a weight decay, that Zoology's trainer does not read"),
    renamed("bias", "True", "skip_term"),
    same("num_inner_mlps", "2"),
    renamed("linear_mixer", "False", "linear_filter"),
    renamed("modulate", "True", "fast_decay, slow_decay", "False: no decay, 1e12 for both"),
    renamed("normalized", "False", "normalize_filter"),
    renamed("fast_decay_pct", "0.3", "fast_decay"),
    renamed("slow_decay_pct", "1.5", "slow_decay"),
    renamed("target", "1e-2", "fast_decay, slow_decay", "another share of l_max until 0.01"),
    renamed("modulation_lr", "0.0", "learned_decay", "other than 0: True; no effect if modulate is False"),
    renamed("shift", "0.0", "decay_floor"),
    ignored("channels", "1", SWALLOWED),
)
"""What Hyena passes on to `Filter` and `ExponentialModulation`."""

OPTIONS: dict[str, tuple[Option, ...]] = {
    "zoology.mixers.base_conv.BaseConv": (
        D_MODEL,
        _L_MAX,
        same("kernel_size", "3", "or one for each layer"),
        renamed("layer_idx", "None", "kernel_size", "which of them"),
        renamed("implicit_long_conv", "True", "implicit"),
        same("use_act", "False"),
        ignored("d_emb", "3", f"of the filter; {SWALLOWED}"),
        ignored("d_hidden", "16", f"of the filter; {SWALLOWED}"),
    ),
    "zoology.mixers.convolution.LongConvolution": (D_MODEL, _L_MAX, *KEYWORDS[1:]),
    "zoology.mixers.convolution.ImplicitLongConvolution": (
        D_MODEL,
        _L_MAX,
        renamed("d_emb", "3", "emb_dim"),
        renamed("d_hidden", "16", "filter_order"),
        *KEYWORDS[1:],
    ),
    "zoology.mixers.convolution.ShortConvolution": (D_MODEL, same("kernel_size")),
    "zoology.mixers.hyena.Hyena": (
        D_MODEL,
        _L_MAX,
        same("filter_order", "64"),
        refused("num_heads", "1", f"{FAILS}; ours has the heads of Zoology's appendix"),
        refused("num_blocks", "1", "filters wrap around within blocks, so outputs depend on later tokens"),
        ignored("outer_mixing", "False", "never read"),
        dropout(),
        ignored("filter_dropout", "0.0", "never read"),
        renamed("short_filter_order", "3", "kernel_size"),
        ignored("return_state", "False", "returns None too"),
        refused("bidirectional", "False", FAILS),
        LAYER,
        *_FILTER,
    ),
    "zoology.mixers.h3.h3.H3": (
        D_MODEL,
        same("d_state", "64"),
        same("l_max", "None", "None fails in their code"),
        same("head_dim", "1"),
        refused("use_fast_fftconv", "False", FAILS),
        dropout(),
        LAYER,
        *TENSORS,
        renamed("kernel_args", "{}", "kernel", "see SSKernel; of the second state space"),
    ),
    "zoology.mixers.h3.ss_kernel.SSKernel": (
        ignored("measure", "'diag-lin'", INITIAL),
        ignored("rank", "1", INITIAL),
        refused("channels", "1", "H3 gives it; another one fails in their code"),
        same("dt_min", "0.001", "of mode 'diag'"),
        same("dt_max", "0.1", "of mode 'diag'"),
        ignored("deterministic", "False", INITIAL),
        ignored("lr", "None", f"{_RATE}; 0, which freezes a parameter, is refused"),
        renamed("mode", "'diag'", "kernel", "'diag', 'ema' or 'shift'"),
        renamed("n_ssm", "None", "num_ssms", "of mode 'diag'"),
        ignored("verbose", "False", "never read"),
        ignored("measure_args", "{}", INITIAL),
        renamed("disc", "'bilinear'", "discretization", f"'zoh' too, not 'dss'; {_DIAG}"),
        renamed("real_type", "'exp'", "rate_form", _DIAG),
        same("bandlimit", "None", _DIAG),
        renamed("force_real", "False", "real", _DIAG),
        renamed("dt_tie", "False", "tied_steps", _EMA),
        renamed("l_max", "None", "kernel_l_max", _EMA),
        ignored("efficient_bidirectional", "False", f"{_EMA}, for more channels than H3 has"),
    ),
}
