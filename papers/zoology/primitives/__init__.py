"""Move, add, repeat and keep rows: the small steps of BaseConv constructions."""
