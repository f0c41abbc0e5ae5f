"""Recall in long texts: questions of any length, asked of any checkpoint."""
