"""How long a test waits for what should come at once."""

PATIENCE = 240
"""seconds after which it will not come: a machine that others use may be a hundred times slower than alone"""
