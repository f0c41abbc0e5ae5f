"""Study attention as interactions between entities (Ustaomeroglu & Qu 2025).

Entities are symbols of a finite domain, coded 0..S-1; a sequence is a tuple of L of them, and its targets are
sums of interactions, y_i = sum_j f(x_i, x_j) w(x_j). The modules construct the layers' representations and
check the theorems numerically:

    data                sequences of symbols and the sums of interactions that are their targets
    embeddings          tables that turn symbols into vectors
    layers              linear self-attention, HyperFeatureAttention and HyperAttention with free weights
    constructions       weights that represent given interactions, exactly or of low rank
    versatility         whether data can identify the interactions: ranks of counts
    transform           the invariant of weights that compute the same function
    environments        colliding agents, predators and prey, genotypes, patterns, time series
    moments             squared errors of layers on data, and the statistics of the data that training needs
    gradient_flow       training from zero scores, with the theorems' bounds along the path
    colliding_agents    the study, ``python -m papers.hyper_self_attention.interactions --scale cpu``
    figure              its figure

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

Shapes that do not fit, values out of range and symbols that are not integers raise a ValueError or TypeError
that names the argument, its value and what was expected.
"""
