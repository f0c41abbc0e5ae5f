"""Shared code of ops: calls, chunks, caches, checks, and the choice of an implementation."""
