"""Where a benchmark's table stands in a Markdown page: between two comments with the benchmark's name."""

from based_jax.validate import expect


def insert(page: str, name: str, table: str | None) -> str:
    """The page with `table` between the lines `<!-- name -->` and `<!-- /name -->`; None only looks for them.

    Raises:
        ValueError: the page has not one line of each comment, in order.
    """
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begin, rest = page.partition(opening)
    _, end, after = rest.partition(closing)
    expect(bool(begin and end), "--markdown", "", f"a file with the lines {opening} and {closing}")
    return page if table is None else "".join((before, begin, "\n", table, end, after))
