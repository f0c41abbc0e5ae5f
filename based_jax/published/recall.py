"""What the paper and the authors report for the recall tasks."""

from typing import Any

from based_jax.published.tables import table


def published(task: str) -> list[dict[str, Any]]:
    """Rows of a recall task: model, size (parameters / training tokens), source, and contains, in percent.

    The released checkpoints' own numbers come first: those are what a converted checkpoint has to reach. The
    models of the paper's table are others of the same sizes.
    """
    rows = []
    for name, model in (("based_readme_recall", "checkpoint"), ("based_table_1", "model")):
        found = table(name)
        rows += [
            {"model": row[model], "size": row["size"], "source": found.source, "contains": row[task]}
            for row in found.rows
            if row[task] is not None
        ]
    return rows
