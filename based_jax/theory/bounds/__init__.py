"""What no model of a kind can do, as experiments."""
