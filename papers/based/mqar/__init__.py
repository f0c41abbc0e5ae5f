"""Solve multi-query associative recall by BaseConv layers and by ReLU scores."""
