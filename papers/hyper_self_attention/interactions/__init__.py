"""Study attention as interactions between entities (Ustaomeroglu & Qu 2025).

Entities are symbols of a finite domain, coded 0..S-1; a sequence is a tuple of L of them, and its targets are
sums of interactions, y_i = sum_j f(x_i, x_j) w(x_j). The modules construct the layers' representations of
them, and check the theorems numerically.

Letters beyond those of `based_jax.typing`, as in the paper: S symbols, L entities of a sequence, d width of
an embedding, d2 outputs, A factors of a head, n order of an interaction. Theory is float64: tables are NumPy;
layers are JAX and take their dtype from their arguments (within ``jax.enable_x64(True)`` for float64).

Arguments with the same name mean the same everywhere:

    rng             source of randomness
    size            number S of symbols, coded 0..S-1; of a circle or a grid, its cells N
    length, count   number of entities L of a sequence, and number of sequences
    probabilities   of the symbols, sum 1; None for uniform ones
    keys            1 for self-attention, n - 1 for HyperAttention of order n
    order           which tuples HyperAttention sums, see `layers.hyper_attention`
    table           embeddings (S, d) of the symbols; None for one-hot
    orthonormal     whether sinusoidal embeddings are scaled to be orthonormal
    radius          of agents, in cells

The functions do not check their arguments, except for `gradient_flow`.
"""
