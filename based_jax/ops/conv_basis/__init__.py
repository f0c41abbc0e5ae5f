"""Attention whose scores, or whose mask, have a structure (Gu et al. 2024, "Conv-Basis")."""
