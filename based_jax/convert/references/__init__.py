"""Match the authors' torch modules to ours: options, layout rules and ops, by family."""
