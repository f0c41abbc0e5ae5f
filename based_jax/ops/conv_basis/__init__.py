"""Attention whose scores, or whose mask, have a structure (Gu et al. 2024, "Conv-Basis")."""

# isort: off
from based_jax.ops.conv_basis.conv_basis import conv_assemble as conv_assemble, conv_exp as conv_exp
from based_jax.ops.conv_basis.conv_basis import conv_matrix as conv_matrix, conv_separation as conv_separation
from based_jax.ops.conv_basis.conv_recovery import conv_anchors as conv_anchors, conv_recover as conv_recover
from based_jax.ops.conv_basis.conv_recovery import conv_score_error as conv_score_error
