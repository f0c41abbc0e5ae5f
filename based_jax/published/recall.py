"""Results of the paper and the authors on the recall tasks."""

from typing import Any

from based_jax.published.tables import table


def published(task: str) -> list[dict[str, Any]]:
    """Return rows of a recall task: model, size (parameters / training tokens), source, contains (percent).

    The released checkpoints' own numbers come first: a converted checkpoint has to reach those. The models of
    the paper's table are different ones of the same sizes.
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
