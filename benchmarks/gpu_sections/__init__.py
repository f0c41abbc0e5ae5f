"""What `python -m benchmarks gpu` measures, a module per subject; importing one starts no GPU work."""
