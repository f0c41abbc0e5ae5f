"""A run on disk and at the terminal: its directory, checkpoints, metrics and progress, signals."""
