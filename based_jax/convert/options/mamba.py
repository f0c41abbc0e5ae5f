"""Arguments of Mamba and Mamba-2, in Zoology's code and in Mamba's own."""

from based_jax.convert.options.option import Option
from based_jax.convert.options.rows import D_MODEL, INITIAL, LAYER, TENSORS, ignored, refused, renamed, same

_KERNEL = "selects a kernel; same results"

_STEPS = (
    same("dt_min", "0.001"),
    same("dt_max", "0.1"),
    renamed("dt_init_floor", "1e-4", "dt_floor"),
)

_MAMBA = (
    D_MODEL,
    same("d_state", "16"),
    same("d_conv", "4"),
    same("expand", "2", "channels are rounded down, as in their code"),
    same("dt_rank", "'auto'", "in Zoology's code only 'auto' works"),
    *_STEPS[:2],
    same("dt_init", "'random'"),
    same("dt_scale", "1.0"),
    _STEPS[2],
    same("conv_bias", "True"),
    same("bias", "False"),
    ignored("use_fast_path", "True", _KERNEL),
    LAYER,
    *TENSORS,
)

_MAMBA2 = (
    D_MODEL,
    same("d_state", "128"),
    same("d_conv", "4"),
    ignored("conv_init", "None", INITIAL),
    same("expand", "2"),
    renamed("headdim", "64", "head_dim"),
    renamed("d_ssm", "None", "ssm_channels"),
    renamed("ngroups", "1", "num_groups"),
    renamed("A_init_range", "(1, 16)", "decay_min, decay_max"),
    renamed("D_has_hdim", "False", "skip_per_channel"),
    renamed("rmsnorm", "True", "norm"),
    same("norm_before_gate", "False"),
    *_STEPS,
    renamed("dt_limit", "(0.0, inf)", "dt_least, dt_most"),
    same("bias", "False"),
    same("conv_bias", "True"),
    same("chunk_size", "256", "does not affect outputs"),
    ignored("use_mem_eff_path", "False", _KERNEL),
    LAYER,
    refused("process_group", "None", "tensor parallelism is a mesh here"),
    ignored("sequence_parallel", "True", "tensor parallelism"),
    *TENSORS,
    same("norm_eps", "1e-5", "a constant in their code"),
)

OPTIONS: dict[str, tuple[Option, ...]] = {
    "zoology.mixers.mamba.Mamba": _MAMBA,
    "zoology.mixers.mamba2.Mamba2": (
        *_MAMBA2,
        ignored("use_fast_path", "True", "never read"),
        ignored("num_feature_maps", "1", "never read"),
    ),
    "mamba_ssm.modules.mamba2.Mamba2": _MAMBA2,
}
