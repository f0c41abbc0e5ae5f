"""What the kernels take of GPUs that are not there: compiled by XLA's whole GPU compiler, never run."""
