"""Deterministic simulation: the real cores in a world of virtual time and planned faults."""
