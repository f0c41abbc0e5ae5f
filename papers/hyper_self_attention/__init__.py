"""Hyper self-attention (Ustaomeroglu and Qu, 2025): attention as interactions, and its language models."""
