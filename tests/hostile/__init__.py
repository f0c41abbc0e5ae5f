"""Attack classes, run by hand: ``python -m tests.hostile``. The last run is in SECURITY.md."""
