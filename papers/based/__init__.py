"""Based (Arora et al., 2024): lower bounds on states and layers, and recall by BaseConv layers."""
