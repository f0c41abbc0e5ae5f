"""Check states: the index game, mixers, recall with errors, linear states."""

from collections.abc import Iterator
from math import log2

import numpy as np

from papers.based.bounds import mixer_states
from papers.based.bounds.capacity import expected_recall, simulated_recall
from papers.based.bounds.capacity_curves import above, published_curves
from papers.based.bounds.index_game import bit_per_key, hashed, last_pairs, play
from papers.based.bounds.linear_state import delta_rule, orthonormal, outer_products, squared_error
from papers.based.bounds.recall_bound import best_recall
from papers.check import Check, largest_difference

MIXERS: tuple[tuple[str, dict[str, int]], ...] = (
    ("gla", {"d_model": 1}),
    ("linear_attention", {"d_model": 1, "feature_dim": 1}),
    ("short_conv", {}),
    ("sliding_window", {"left": 3}),
)
"""The first two, as narrow as possible, distinguish all strings; the others do not."""

FORMULA = 0.1
"""Tolerance of `expected_recall`: it is up to 0.07 too low, and the trials are 1024 answers."""


def checks(seed: int = 0) -> list[Check]:
    """Based, theorem F.3; Zoology, corollary H.24."""
    return [*_states(seed), *_linear_states(np.random.default_rng(seed))]


def _states(seed: int) -> Iterator[Check]:
    bits = 8
    full, small = play(bit_per_key(bits), bits), play(hashed(bits - 1), bits)
    yield Check(
        statement="Recalling n bits takes 2^n states: one bit a key is the least",
        source="Based, theorem F.3 (3.1)",
        checked="all answers right with 2^n states, some wrong with half of them",
        sizes=f"all strings and indices, n = {bits}",
        error=float(full.wrong + abs(full.states - 2**bits) + (small.wrong == 0)),
    )

    played = [mixer_states.run(name, bits, seed=seed, **options) for name, options in MIXERS]
    sizes = {states.mixer: states.size for states in played if states.size is not None}
    forget = [states for states in played if not states.recalls]
    sized = ", ".join(f"{name} {size}" for name, size in sizes.items())
    others = {name for name, _ in MIXERS[2:]} ^ {states.mixer for states in forget}
    too_small = sum(max(0, bits - size) for size in sizes.values())
    yield Check(
        statement="A mixer that recalls n bits has a state of n bits",
        source="Based, theorem F.3 (3.1)",
        checked=f"bits of {sized} against n; {' and '.join(s.mixer for s in forget)} confuse strings",
        sizes=f"all strings of n = {bits} bits, random parameters",
        error=float(too_small + len(others) + sum(states.collision is None for states in forget)),
    )

    games = [play(model(slots), bits) for model in (last_pairs, hashed) for slots in range(1, bits)]
    over = [1 - game.wrong / (bits * 2**bits) - best_recall(log2(game.states), bits, 2) for game in games]
    yield Check(
        statement="A state of b bits recalls no more than Fano's bound",
        source="Based, theorem F.3 (for models that err)",
        checked="recall of windows and tables against the bound at log2 of their states",
        sizes=f"n = {bits}, {len(games)} models",
        error=max(0.0, *over),
    )
    yield Check(
        statement="Published recall lies below Fano's bound",
        source="Based, theorem F.3 and figure 2",
        checked="points above the bound, at 32 bits a number",
        sizes="all models of the figure",
        error=float(len(above(published_curves(), "paper"))),
    )


def _linear_states(rng: np.random.Generator) -> Iterator[Check]:
    width, pairs = 8, 12
    keys, values = orthonormal(rng, pairs, width), np.eye(pairs)
    exact, beyond = (
        [squared_error(write(k, v), k, v) for write in (outer_products, delta_rule)]
        for k, v in ((keys[:width], values[:width]), (keys, values))
    )
    yield Check(
        statement="A linear state of d rows is exact for d keys, and no further",
        source="Zoology, corollary H.24 (ours)",
        checked="outer products and delta rule: squared error 0, then >= P - d",
        sizes=f"d = {width}, P = {width} and {pairs}",
        error=max(*exact, *(pairs - width - error for error in beyond)),
    )

    pairs, known, shapes = 32, 512, ((16, 32), (32, 32), (32, 64))
    expected = np.array([expected_recall(pairs, shape, known) for shape in shapes])
    found = np.array([simulated_recall(rng, pairs, shape, known, trials=32) for shape in shapes])
    yield Check(
        statement="Recall of a linear state with random keys follows a formula",
        source="Based, section 3.1 (ours)",
        checked="the formula against trials",
        sizes=f"{pairs} pairs, {known} values, " + ", ".join(f"{k} x {v}" for k, v in shapes),
        error=largest_difference(expected, found),
        tolerance=FORMULA,
    )
