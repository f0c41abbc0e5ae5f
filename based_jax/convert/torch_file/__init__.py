"""Read and write the weight files of `torch.save` without torch."""
