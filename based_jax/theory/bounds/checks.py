"""The rows of the table for lower bounds."""

from based_jax.theory.bounds import degree_checks, p_hot_checks, state_checks
from based_jax.theory.check import Check


def checks(seed: int = 0) -> list[Check]:
    """Based, F.4 and F.5 (theorems 3.1 to 3.3); Zoology, corollary H.24."""
    return [*state_checks.checks(seed), *degree_checks.checks(seed), *p_hot_checks.checks(seed)]
