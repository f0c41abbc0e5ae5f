"""Format numbers for tables."""


def significant(value: float) -> str:
    """Format at least three digits, never with an exponent."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def exponent(value: float | None) -> str:
    """Format two decimals, or a dash for None."""
    return "-" if value is None else f"{value:.2f}"
