"""What kernels and whole models take of GPUs that are not there: compiled by XLA for them, never run."""
