"""Time this library's computations side by side: `python -m benchmarks --help`."""
