"""The measurements of `python -m benchmarks gpu`, a module per subject; importing one starts no GPU work."""
