"""The authors' torch modules and ours: options, layout rules and ops, one file per family; see `table`."""
