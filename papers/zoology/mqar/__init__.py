"""Solutions of multi-query associative recall that can be written down."""
