"""Train on multi-query associative recall: data, the grid of models, and the sweep over it."""
