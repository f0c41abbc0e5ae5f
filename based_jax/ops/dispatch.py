"""Which implementation of an op runs: a name means that one or an error, None means the best that works."""

from based_jax.validate import expect, expect_choice

# Best first: `implementation=None` picks the head of the row. The reference is the specification and the
# arbiter in tests; it is never picked by itself.
_IMPLEMENTATIONS = {
    "linear_attention": ("xla", "reference"),
    "taylor_attention": ("xla", "reference"),
    "softmax_attention": ("xla", "reference"),
}


def implementations(op: str) -> tuple[str, ...]:
    """The names that `op` accepts as `implementation`, the default first.

    Raises:
        ValueError: unknown op.
    """
    expect_choice("op", op, tuple(_IMPLEMENTATIONS))
    return _IMPLEMENTATIONS[op]


def implementation_for(op: str, *arrays: object, implementation: str | None = None) -> str:
    """The implementation that runs for these arguments; with None, the one that would be picked.

    Args:
        op: name of a function of `based_jax.ops` that takes `implementation`.
        arrays: its array arguments (shapes and dtypes may decide; today none does).
        implementation: the caller's request.

    Raises:
        ValueError: unknown op, or an implementation that this op does not have.
    """
    available = implementations(op)
    if implementation is None:
        return available[0]
    expect(
        implementation in available,
        "implementation",
        implementation,
        f"None or one of {', '.join(map(repr, available))} for {op}",
    )
    return implementation
