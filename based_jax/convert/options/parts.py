"""Arguments that several classes there share."""

from based_jax.convert.options.option import Option

KERNEL = "chooses a kernel, not a number"
SHARDING = "of tensor parallelism, which a mesh gives here"
MULTIPLE = "the width is rounded as there, or the weights decide"

FACTORY = (
    Option("device", "None", "", "ignored", "where the tensors are kept"),
    Option("dtype", "None", "dtype", "same", "of the computation; parameters are float32 here"),
)

MLP_SIZES = (
    Option("in_features", "", "d_model", "renamed", ""),
    Option("hidden_features", "None", "hidden", "renamed", "the weights decide"),
    Option("out_features", "None", "d_out", "renamed", ""),
)

RETURNED = Option("return_residual", "False", "", "ignored", "returns the input too, which changes no number")

BLOCK = (
    Option("dim", "", "", "renamed", "of the mixer and the MLP"),
    Option("mixer_cls", "None", "mixer", "renamed", "an instance; there is no default here"),
    Option("mlp_cls", "None", "mlp", "renamed", "an instance; None is no MLP, nn.Identity there"),
    Option("norm_cls", "nn.LayerNorm", "norm, norm_eps", "renamed", ""),
)
