"""Arithmetic circuits, and the BaseConv layers that compute them."""
