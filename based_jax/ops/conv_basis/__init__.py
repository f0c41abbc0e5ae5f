"""Attention whose scores, or whose mask, have a structure (Gu et al. 2024, "Conv-Basis")."""

from based_jax.ops.conv_basis.conv_basis import conv_matrix as conv_matrix
from based_jax.ops.conv_basis.conv_basis import conv_recover as conv_recover
from based_jax.ops.conv_basis.conv_basis import conv_score_error as conv_score_error
from based_jax.ops.conv_basis.conv_basis import conv_separation as conv_separation
