"""Train on a synthetic task: its segments, batches, the grid of models, and the sweep over it."""
