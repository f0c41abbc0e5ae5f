"""Every constructor argument and config entry of the authors' code, and what we do with it: see `option`."""
