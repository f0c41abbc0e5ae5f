"""Manage a run on disk and at the terminal: directory, checkpoints, metrics and progress."""
