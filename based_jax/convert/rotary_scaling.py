"""Frequencies of rotary positions that a config.json of `transformers` scales for a longer context.

With base b, d channels of a head and pairs i = 0 ... d / 2 - 1 the frequencies are f_i = b^(-2 i / d), and

    linear   f_i / s: positions are interpolated (Chen et al. 2023, section 3.2)
    llama3   f_i / s for pairs that turn less than low_freq_factor times in L, f_i above high_freq_factor, and
             in between linear in the number of turns (the code of Llama 3.1)
    yarn     f_i / s for pairs that turn less than beta_slow times in L, f_i above beta_fast, and in between
             linear in i; queries and keys times 0.1 ln s + 1 (Peng et al. 2023, sections 3.2 and 3.4)

where s is `factor`, and L the context before it was scaled, `original_max_position_embeddings`. With a
`partial_rotary_factor` d is that share of a head's channels, and the others are not rotated.
"""

import math
from typing import Any

import numpy as np

from based_jax.convert.options import Config, flag, fraction, number, section, size
from based_jax.validate import expect, expect_choice

ENTRIES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        *("factor", "original_max_position_embeddings", "attention_factor"),
        *("beta_fast", "beta_slow", "truncate"),
    ),
}
"""`rope_type` -> the entries that it has."""

PARTIAL = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""Further entries of families with the first; text has equal positions in all dimensions of the others."""


def rotary_options(config: Config, head_dim: int) -> dict[str, Any]:
    """Return the options of softmax attention for the rotary positions of a config.

    Args:
        config: with `rope_parameters`, or in older versions `rope_theta` and `rope_scaling`.
        head_dim: channels of a head.
    """
    where = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = section(config, where)
    kind = given.get("rope_type", given.get("type", "default"))
    expect_choice(f"{where}.rope_type", kind, tuple(ENTRIES))
    known = ("rope_type", "type", "rope_theta", *ENTRIES[kind])
    for name in given:
        expect_choice(f"entry of {where}", name, known + (PARTIAL if PARTIAL[0] in config else ()))
    base = number(given, "rope_theta", number(config, "rope_theta", 10000.0))
    share = number(given, "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0))
    rotated = int(share * head_dim) if share <= 1 else 0
    expect(
        rotated > 0 and rotated % 2 == 0,
        "partial_rotary_factor",
        share,
        f"the share of an even number of the {head_dim} channels of a head",
    )
    options: dict[str, Any] = {"rotary_fraction": fraction(rotated, head_dim)}
    if kind == "default":
        return {"rotary_base": base, **options}
    factor = number(given, "factor", 0.0)
    expect(factor >= 1, f"{where}.factor", given.get("factor"), "a number, at least 1")
    expect(base > 1, "rope_theta", base, "a number above 1")
    usual = base ** (-np.arange(0, rotated, 2) / rotated)
    length = size(given, "original_max_position_embeddings", size(config, "max_position_embeddings", 2048))
    if kind == "linear":
        kept: Any = 0.0
    elif kind == "llama3":
        kept = _kept_by_llama3(given, usual, length)
    else:
        kept = _kept_by_yarn(given, base, rotated, length)
        scale = number(given, "attention_factor", 0.1 * math.log(factor) + 1)
        expect(
            scale == 1 or rotated == head_dim, f"{where}.attention_factor", scale, "1 with unrotated channels"
        )
        options["scale"] = scale**2 * head_dim**-0.5  # of queries and of keys
    frequencies = usual * (kept + (1 - kept) / factor)
    return {"rotary_frequencies": tuple(map(float, frequencies)), **options}


def _kept_by_llama3(given: Config, usual: np.ndarray, length: int) -> np.ndarray:
    """Return the share of each pair's unscaled frequency."""
    low, high = number(given, "low_freq_factor", 1.0), number(given, "high_freq_factor", 4.0)
    expect(low < high, "high_freq_factor", high, f"a number above low_freq_factor = {low}")
    return np.clip((length * usual / (2 * math.pi) - low) / (high - low), 0, 1)


def _kept_by_yarn(given: Config, base: float, rotated: int, length: int) -> np.ndarray:
    """Return the share of each pair's unscaled frequency."""
    fast, slow = number(given, "beta_fast", 32.0), number(given, "beta_slow", 1.0)
    expect(0 < slow < fast, "beta_fast", fast, f"a number above beta_slow = {slow}, which is above 0")
    pairs = rotated / (2 * math.log(base))  # per factor e of the wavelength
    first, last = (pairs * math.log(length / (2 * math.pi * turns)) for turns in (fast, slow))
    if flag(given, "truncate", "truncate" not in given):  # to whole pairs; null is false, as there
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotated - 1)
    last += 0.001 if first == last else 0  # as in `transformers`: a step in place of 0 / 0
    return 1 - np.clip((np.arange(rotated // 2) - first) / (last - first), 0, 1)
