"""The weight files of `torch.save`, read and written without torch."""
