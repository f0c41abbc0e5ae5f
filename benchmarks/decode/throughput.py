"""Tokens per millisecond, prefill and generation, that Based's Table 1 prints for its models."""

from collections.abc import Mapping

from based_jax.published.tables import number, table

MODELS = {
    "360m": {"Transformer++": "360m/10b", "Based": "363m/10b", "Mamba": "358m/10b"},
    "1.3b": {"Transformer++": "1.33b/10b", "Based": "1.35b/10b", "Mamba": "1.32b/10b"},
}
"""The table's rows by size and model."""

PROMPTS = {"360m": 16_384, "1.3b": 4_096}
"""Tokens of the prompts by size; 2,048 tokens are generated for each."""


def throughput() -> dict[str, Mapping[str, float]]:
    """Return the columns by title, each by model."""
    found = table("based", 1)
    return {
        title: {model: number(found.row(model=model, size=row), column) for model, row in rows.items()}
        for size, rows in MODELS.items()
        for column, title in (
            ("prefill", f"prefill of {PROMPTS[size]:,} tokens, {size}, paper"),
            ("generate", f"generation, {size}, paper"),
        )
    }
