"""Write a page of the published numbers next to ours: ``python -m papers.results``."""
