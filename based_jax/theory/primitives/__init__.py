"""Moving, adding, repeating and keeping rows: the small steps BaseConv models are built of."""
