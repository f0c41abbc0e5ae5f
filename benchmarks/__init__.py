"""Side-by-side timings of what this library computes: `python -m benchmarks --help`."""
