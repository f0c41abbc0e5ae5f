"""Bound the recall that a state of some bits allows: theorem F.3 of Based, for models that may err.

P values out of V are recalled from b bits, the fraction a of them correctly. By Fano's inequality

    b >= H - P (h(a) + (1 - a) log2(V - 1)),        h(a) = -a log2 a - (1 - a) log2(1 - a),

where H is the entropy of the values: P log2 V if they are independent and uniform, log2(V! / (V - P)!) if no
two are the same, as in MQAR. That holds for any model, even one that knows the keys before. All values take
H bits; guessing, a = 1 / V, takes none.
"""

from math import lgamma, log, log2


def bits_needed(recall: float, pairs: int, values: int, distinct: bool = False) -> float:
    """Return the bits of the state that a mean recall a from 1 / V to 1 takes at least.

    Of P = `pairs` pairs, with V = `values` values, no two of them the same if `distinct`.
    """
    entropy = pairs * log2(values)
    if distinct:
        entropy = (lgamma(values + 1) - lgamma(values - pairs + 1)) / log(2)
    missed = 1 - recall
    unsure = -sum(p * log2(p) for p in (recall, missed) if p > 0)
    return max(0.0, entropy - pairs * (unsure + missed * log2(values - 1)))


def best_recall(bits: float, pairs: int, values: int, distinct: bool = False) -> float:
    """Return the largest mean recall with so many bits, by bisection; other arguments as in `bits_needed`."""
    low, high = 1 / values, 1.0
    if bits >= bits_needed(high, pairs, values, distinct):
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if bits_needed(middle, pairs, values, distinct) <= bits else (low, middle)
    return high


def table_recall(bits: float, pairs: int, values: int) -> float:
    """Return a table's recall: the values of the first pairs that fit, log2 V bits each, others guessed."""
    slots = min(pairs, int(bits / log2(values)))
    return (slots + (pairs - slots) / values) / pairs
