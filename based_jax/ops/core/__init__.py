"""What ops share: calls, chunks, caches, checks, and the choice of an implementation."""
