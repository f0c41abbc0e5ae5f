"""Compute other layers by BaseConv."""
