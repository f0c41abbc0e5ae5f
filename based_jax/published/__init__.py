"""Load the papers' numbers: `table("based", 2)` is Table 2 of Based; `names()` lists all tables.

`tables.training_flops` has the papers' formulas.
"""

from based_jax.published.tables import Column, Table, names, number, table

__all__ = ["Column", "Table", "names", "number", "table"]
