"""Where a run computes: meshes, sharding and hosts, what they send, and how much of a device is used."""
