"""Devices of a run: meshes, sharding, several hosts, communication volume and utilization."""
