"""The papers' numbers as data: `table("based", 2)` is Table 2 of Based, `names()` are all there are.

`flops`, `parameters`, `recall` and `throughput` have what models and measurements are compared with.
"""

from based_jax.published.tables import Column, Table, names, number, table

__all__ = ["Column", "Table", "names", "number", "table"]
