"""Measure the resources of kernels and whole models for absent GPUs: compiled by XLA, never run."""
