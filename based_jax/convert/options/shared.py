"""Arguments that several of their classes share."""

from based_jax.convert.options.option import Option

KERNEL = "selects a kernel; same results"
SHARDING = "tensor parallelism, which a mesh provides here"
MULTIPLE = "the width is rounded as in their code, or inferred from the weights"

FACTORY = (
    Option("device", "None", "", "ignored", "placement of the tensors"),
    Option("dtype", "None", "dtype", "same", "of the computation; parameters are float32 here"),
)

MLP_SIZES = (
    Option("in_features", "", "d_model", "renamed", ""),
    Option("hidden_features", "None", "hidden", "renamed", "inferred from the weights"),
    Option("out_features", "None", "d_out", "renamed", ""),
)

RETURNED = Option("return_residual", "False", "", "ignored", "also returns the input; same results")

BLOCK = (
    Option("dim", "", "", "renamed", "of the mixer and the MLP"),
    Option("mixer_cls", "None", "mixer", "renamed", "an instance; there is no default here"),
    Option("mlp_cls", "None", "mlp", "renamed", "an instance; None is no MLP, their nn.Identity"),
    Option("norm_cls", "nn.LayerNorm", "norm, norm_eps", "renamed", ""),
)
