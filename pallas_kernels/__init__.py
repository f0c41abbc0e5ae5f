"""Fused GPU kernels. Nothing here imports `based_jax`, whose ops dispatch to these.

Each folder is one op: its kernels, its table of block sizes, and a README on the data it moves.
"""

from pallas_kernels.conv_step import conv_step
from pallas_kernels.conv_step import supports as supports_conv_step
from pallas_kernels.devices import cannot_run
from pallas_kernels.gated_conv import gated_conv
from pallas_kernels.gated_conv import supports as supports_gated_conv
from pallas_kernels.launch import interpreted, is_interpreted
from pallas_kernels.linear_recurrence import MAX_KEYS as MAX_RECURRENCE_KEYS
from pallas_kernels.linear_recurrence import linear_recurrence
from pallas_kernels.linear_recurrence import supports as supports_linear_recurrence
from pallas_kernels.offline import is_lowered_for_gpu, lowering_for
from pallas_kernels.rms_norm import add_rms_norm
from pallas_kernels.rms_norm import supports as supports_rms_norm
from pallas_kernels.row_products import GATES, SumNorm, conv_row_product, gated_row_product, row_products
from pallas_kernels.row_products import supports as supports_row_products
from pallas_kernels.selective_scan import selective_scan
from pallas_kernels.selective_scan import supports as supports_selective_scan
from pallas_kernels.softmax_loss import softmax_loss
from pallas_kernels.softmax_loss import supports as supports_softmax_loss
from pallas_kernels.taylor_attention import fastest as fastest_taylor_attention
from pallas_kernels.taylor_attention import is_slow as is_slow_taylor_attention
from pallas_kernels.taylor_attention import supports as supports_taylor_attention
from pallas_kernels.taylor_attention import supports_mosaic as supports_mosaic_taylor_attention
from pallas_kernels.taylor_attention import taylor_attention
from pallas_kernels.taylor_step import fastest as fastest_taylor_step
from pallas_kernels.taylor_step import supports as supports_taylor_step
from pallas_kernels.taylor_step import taylor_step
from pallas_kernels.triton_launch import cannot_launch
from pallas_kernels.tuning import was_faster
from pallas_kernels.window_attention import MAX_LEFT as MAX_WINDOW_LEFT
from pallas_kernels.window_attention import supports as supports_window_attention
from pallas_kernels.window_attention import window_attention
from pallas_kernels.window_step import Rotary, window_step
from pallas_kernels.window_step import fastest as fastest_window_step
from pallas_kernels.window_step import supports as supports_window_step

__all__ = [
    "GATES",
    "MAX_RECURRENCE_KEYS",
    "MAX_WINDOW_LEFT",
    "Rotary",
    "SumNorm",
    "add_rms_norm",
    "cannot_launch",
    "cannot_run",
    "conv_row_product",
    "conv_step",
    "fastest_taylor_attention",
    "fastest_taylor_step",
    "fastest_window_step",
    "gated_conv",
    "gated_row_product",
    "interpreted",
    "is_interpreted",
    "is_lowered_for_gpu",
    "is_slow_taylor_attention",
    "linear_recurrence",
    "lowering_for",
    "row_products",
    "selective_scan",
    "softmax_loss",
    "supports_conv_step",
    "supports_gated_conv",
    "supports_linear_recurrence",
    "supports_mosaic_taylor_attention",
    "supports_rms_norm",
    "supports_row_products",
    "supports_selective_scan",
    "supports_softmax_loss",
    "supports_taylor_attention",
    "supports_taylor_step",
    "supports_window_attention",
    "supports_window_step",
    "taylor_attention",
    "taylor_step",
    "was_faster",
    "window_attention",
    "window_step",
]
