"""What is timed in torch beside ours: a Transformer++ and flash-linear-attention's kernels. Needs torch."""
