"""Numbers as tables show them."""


def significant(value: float) -> str:
    """At least three digits, never an exponent."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def exponent(value: float | None) -> str:
    """Two decimals, or that there is none."""
    return "-" if value is None else f"{value:.2f}"
