"""Which ops and mixers work under which of JAX's transformations and settings.

The table of docs/transformations.md; tests/transformations checks all of it.
"""

TRANSFORMATIONS = {
    "vmap": "`jax.vmap`",
    "scan": "`lax.scan`",
    "checkpoint": "`jax.grad` of `jax.checkpoint`",
    "jvp": "`jax.jvp`",
    "linearize": "`jax.linearize`",
    "x64": "`jax_enable_x64`",
    "rank_promotion": '`jax_numpy_rank_promotion="raise"`',
    "debug_nans": "`jax_debug_nans`",
    "debug_nans_inside": "`jax_debug_nans` with `jax_disable_jit`",
    "transfer_guard": '`jax.transfer_guard("disallow")`',
}
"""By name, as they are written."""

FORWARD_MODE = ("jvp", "linearize")

NO_FORWARD_MODE = "can't apply forward-mode autodiff (jvp) to a custom_vjp function"
"""In JAX's TypeError; outside `jit` ours names the op instead."""

REVERSE_ONLY = frozenset(
    {
        "cross_entropy",
        "diagonal_scan xla",
        "landmark_attention",
        "scatterbrain_attention",
        "selective_scan xla",
        "short_conv_step pallas",
        "softmax_attention pallas",
        "softmax_attention tiled",
        "softmax_attention xla",
        "taylor_attention pallas",
        "taylor_step pallas",
        "window_step pallas",
        "wkv xla",
        "mixers.blocked_window",
        "mixers.liquid_s4",
        "mixers.mamba",
        "mixers.nystrom",
        "mixers.rwkv4",
        "mixers.scatterbrain",
        "mixers.sliding_window",
    }
)
"""What has a gradient of its own, hence no derivative in forward mode: ops, with their implementation where
they have several, and mixers. Full attention by "xla" has one; windows have not."""


def refusal(subject: str, transformation: str) -> str | None:
    """Return the words of the error that an op or mixer raises under a transformation, None where it works.

    Args:
        subject: "op", "op implementation" or "mixers.NAME".
        transformation: a key of `TRANSFORMATIONS`.
    """
    return NO_FORWARD_MODE if transformation in FORWARD_MODE and subject in REVERSE_ONLY else None
